"""Plugins: modules outside of zoo that register classes of their own.

Only modules that the user names are imported: in a YAML file, with ``--plugin``, with `load_plugin`, or by
installing a package that has an entry point in the group ``zoo.plugins``. Runs and checkpoints record the
plugins that they use as `PluginRecord`; no code is ever imported because of a record.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType

from pydantic import Field

from zoo.config.registry import Config, Kind, location
from zoo.utils.atomic import write_file
from zoo.utils.errors import ConfigError, PluginError, ZooError, did_you_mean
from zoo.utils.files import CONFIG_BYTES, expand_home, read_bytes

log = logging.getLogger("zoo")

ENTRY_POINTS = "zoo.plugins"
"""The group of entry points by which an installed package offers its plugins."""

MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
CLASS_PATH = re.compile(r"(?P<module>.+\.py):(?P<cls>\w+)|(?P<package>\w+(\.\w+)*)\.(?P<name>[^\W\d]\w*)")
"""The path of a class outside of zoo: ``my_opt.py:Lion`` or ``torch.optim.NAdam``."""

SHOWN = 12
"""Number of digits of a sha256 in names and messages."""

_named: dict[str, ModuleType] = {}
"""The plugins that were named, by the argument with which `load_plugin` finds them in another process."""

_changes_allowed = False


class PluginRecord(Config):
    """The record of a plugin that a run or a checkpoint uses."""

    name: str = Field(description="name of the file, or of the module")
    version: str | None = Field(None, description="version of the installed package; null for a single file")
    sha256: str | None = Field(None, description="hash of the module's file; null if it has none")

    @property
    def copy_path(self) -> Path:
        """The relative path of a copy of the file, which is different for every content."""
        return Path(str(self.sha256)[:SHOWN], f"{self.name.removesuffix('.py')}.py")


def load_plugin(source: str | Path, folder: str | Path = ".") -> ModuleType:
    """Import a module from outside of zoo, which registers classes of its own.

    A file that has changed since it was imported is imported again, and its classes replace the former ones.
    A file with the same content as an imported one is not imported again.

    Args:
        source: a Python file, or the name of a module that Python finds (``my_package.blocks``).
        folder: the folder that a relative path is relative to.

    Returns:
        The module.

    Raises:
        PluginError: There is no such file or module, importing it fails, or it has a class with a `type` that
            is not registered; the message names the file and the line.
    """
    text = os.fspath(source)
    path = Path(folder, expand_home(text))
    if path.suffix == ".py" or os.sep in text or path.is_file():
        module = _import_file(path.resolve())
    elif MODULE_NAME.fullmatch(text):
        module = _named[text] = _import_module(text)
    else:
        raise PluginError(f"plugin '{text}': expected a Python file, or the name of a module")
    for value in vars(module).values():
        if _is_forgotten(value, module):
            raise PluginError(f"{location(value)}: not registered; expected a decorator @zoo.KIND.register")
    return module


def import_class(path: str, folder: str | Path = ".", again: bool = False) -> str:
    """Import the module of a class that the user names by its path.

    Args:
        path: ``my_opt.py:Lion`` or ``torch.optim.NAdam``.
        folder: the folder that a relative path is relative to.
        again: whether the name of a file without a folder may refer to an imported file.

    Returns:
        The path by which `adapted` finds the class, without the folder of the file.

    Raises:
        PluginError: The module cannot be imported, see `load_plugin`, or another file of that name is
            imported.
    """
    source, name = _split(path)
    if again and (same := _files_called(source)):
        source = str(same[0].__file__)
    module = load_plugin(source, folder)
    if module.__spec__ is not None:
        return path
    file = record_of(module).name
    if len(same := _files_called(file)) > 1:
        raise PluginError(f"two files are called '{file}': {', '.join(str(m.__file__) for m in same)}")
    return f"{file}:{name}"


def adapted(kind: Kind, path: str) -> None:
    """Register the configuration of a class of an imported module under the path of the class.

    Args:
        kind: a registry with an `adapt`.
        path: the path of the class, as `import_class` returns it or a run folder holds it.

    Raises:
        PluginError: The module is not imported, or has no such class.
        ConfigError: The class cannot be used; the message names its line, if it is in a file.
    """
    source, name = _split(path)
    files = _files_called(source)
    module = files[0] if files else sys.modules.get(source)
    if module is None:
        raise PluginError(
            f"'{source}' is not imported; code is never imported from a run folder: name it with --plugin, "
            f"or in Python with zoo.load_plugin('{source}')"
        )
    cls = getattr(module, name, None)
    if not isinstance(cls, type):
        found = {other: value for other, value in vars(module).items() if isinstance(value, type)}
        fitting = [other for other, value in found.items() if issubclass(value, kind.adapts)]
        hint = did_you_mean(name, fitting) or f"; expected a subclass of {kind.adapts.__name__}"
        place = getattr(module, "__file__", None) or source  # built-in modules have no file
        raise PluginError(f"{place}: no class called '{name}'{hint}")
    if kind.adapt is None or path in kind.choices:
        return
    try:
        choice = kind.adapt(cls, path)
    except ConfigError as error:
        if module.__spec__ is not None:
            raise
        raise ConfigError(f"{location(cls)}: {str(error).removeprefix(f'{path}: ')}") from error
    kind.register(choice)


@cache
def load_installed() -> None:
    """Import the plugins of installed packages once; those that fail are left out with a warning."""
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            _import_module(entry_point.module)
        except PluginError as error:
            log.warning(f"left out: {error}")


def sources(used: Collection[PluginRecord] | None = None) -> tuple[str, ...]:
    """The arguments, in order, with which `load_plugin` loads the plugins of this process in another one.

    Args:
        used: the plugins to load; None: all that were named in this process.
    """
    return tuple(name for name, module in _named.items() if used is None or record_of(module) in used)


def options(used: Collection[PluginRecord] | None) -> str:
    """The options of a command that load plugins, each after a blank; empty if there are none."""
    return "".join(f" --plugin {shlex.quote(source)}" for source in sources(used))


def allow_changed_plugins(allowed: bool = True) -> None:
    """Set whether plugins whose content differs from the recorded one are accepted."""
    global _changes_allowed
    _changes_allowed = allowed


def records_of(config: Config) -> tuple[PluginRecord, ...]:
    """Records of the modules outside of zoo that define a configuration's classes, sorted by name."""
    modules = {sys.modules[cls.__module__] for cls in _classes_of(config) if _is_foreign(cls)}
    return tuple(sorted(map(record_of, modules), key=lambda r: (r.name, str(r.sha256))))


def record_of_class(cls: type) -> tuple[PluginRecord, ...]:
    """The record of the module that defines a class; none if that is a module of zoo."""
    return (record_of(sys.modules[cls.__module__]),) if _is_foreign(cls) else ()


def require(needed: PluginRecord, copies: Path | None = None) -> None:
    """Check that a recorded plugin is imported and has not changed.

    Args:
        needed: the record in a run or a checkpoint.
        copies: a folder with copies of the run's plugin files.

    Raises:
        PluginError: The plugin is not imported, or it has changed and changes are not allowed; the message
            says how the user can name it.
    """
    module = sys.modules.get(needed.name)
    there = [record_of(module) for module in _modules() | ({module} if module else set())]
    same_name = [other for other in there if other.name == needed.name]
    same_content = [other for other in there if other.sha256 == needed.sha256 is not None]
    if same_content or (same_name and (_changes_allowed or needed.sha256 is None)):
        return
    copy = copies / needed.copy_path if copies is not None else None
    kept = f" (the run keeps a copy: {copy})" if copy is not None and copy.is_file() else ""
    was = f"sha256 {str(needed.sha256)[:SHOWN]}"
    if same_name:
        raise PluginError(
            f"the plugin '{needed.name}' has changed: {was} is recorded, it is "
            f"{str(same_name[0].sha256)[:SHOWN]} now; undo the change{kept}, or add --allow-changed-plugins"
        )
    raise PluginError(
        f"the plugin '{needed.name}' ({was}) is missing; code is never imported from a run folder or a "
        f"checkpoint: name the plugin with --plugin FILE{kept}, or in Python with zoo.load_plugin('FILE')"
    )


@cache
def record_of(module: ModuleType) -> PluginRecord:
    """The record of a module."""
    file = getattr(module, "__file__", None)
    sha256 = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
    if module.__spec__ is None:
        return PluginRecord(name=_name(module), sha256=sha256)
    packages = metadata.packages_distributions().get(_name(module).partition(".")[0], [])
    version = metadata.version(packages[0]) if packages else None
    return PluginRecord(name=_name(module), version=version, sha256=sha256)


def _name(module: ModuleType) -> str:
    """The name of a module in its record: that of its file, unless Python has found it by its name."""
    if module.__spec__ is not None:
        return module.__spec__.name
    file = getattr(module, "__file__", None)
    return Path(file).name if file else module.__name__


def copy_sources(records: Collection[PluginRecord], folder: Path) -> None:
    """Copy the files of imported plugins into the folder of a run.

    Args:
        records: the plugins that the run uses.
        folder: the folder of the copies; existing copies stay.
    """
    names = {record.name for record in records}
    files = {record_of(module): module.__file__ for module in _modules() if _name(module) in names}
    for record in records:
        copy, file = folder / record.copy_path, files.get(record)
        if file is not None and not copy.exists():
            write_file(copy, partial(shutil.copyfile, file))


def line_in_plugin(error: BaseException) -> str | None:
    """The place where a plugin raised an error, as ``file:line``; None if no plugin was involved."""
    files = {getattr(module, "__file__", None) for module in _modules()}
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename in files), None)


def _split(path: str) -> tuple[str, str]:
    """The module and the name of a class."""
    match = CLASS_PATH.fullmatch(path)
    if match is None or path.endswith(".py"):  # the name of a file alone, which could be a module's `py`
        raise PluginError(f"'{path}': expected the path of a class, my_file.py:Name or package.module.Name")
    return match["module"] or match["package"], match["cls"] or match["name"]


def _files_called(name: str) -> list[ModuleType]:
    """The imported files that have a name."""
    return [m for m in _named.values() if m.__spec__ is None and _name(m) == name]


def _import_file(path: Path) -> ModuleType:
    try:
        content = read_bytes(path, CONFIG_BYTES, PluginError)
    except PluginError as error:
        near = "" if path.exists() else did_you_mean(str(path), map(str, path.parent.glob("*.py")))
        raise PluginError(f"plugin {error}{near}") from error
    sha256 = hashlib.sha256(content).hexdigest()
    for imported in _named.values():
        if imported.__spec__ is None and record_of(imported).sha256 == sha256:
            return imported
    former = _named.get(str(path))
    module = ModuleType(f"zoo_plugin_{path.stem}_{sha256[:SHOWN]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with _undone_on_error(str(path), str(path)):
        if former is not None:
            _forget(former)
        try:
            exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[module.__name__]
            raise
    record_of(module)  # caches the record of the executed content
    _named[str(path)] = module
    return module


def _import_module(name: str) -> ModuleType:
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # a module without a spec, for instance __main__
        spec = None
    folder = "" if spec is None or spec.origin is None else str(Path(spec.origin).parent)
    with _undone_on_error(name, folder):
        return importlib.import_module(name)


@contextmanager
def _undone_on_error(source: str, place: str) -> Iterator[None]:
    """Undo the registrations of failed modules if an import fails, and report the place of the failure.

    Modules that were imported before the failure stay imported, and so do their classes: those of zoo itself,
    which a plugin may be the first to import, would not be registered a second time.

    Args:
        source: the plugin that is imported.
        place: the file, or the folder of the package, whose lines the message may name.

    Raises:
        PluginError: The block raises any exception.
    """
    before = {kind: kind.registered for kind in Kind.registries.values()}
    try:
        yield
    except (Exception, SystemExit) as error:
        for kind in Kind.registries.values():
            imported = {n: c for n, c in kind.registered.items() if c.__module__ in sys.modules}
            kind.restore(before.get(kind, {}) | imported)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{source}.".startswith(f"{missing}."):
            raise PluginError(
                f"plugin '{source}': there is no such file, nor a module of that name"
            ) from error
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if place and f.filename.startswith(place)
        ]
        line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else source
        if isinstance(error, SyntaxError):
            line = f"{error.filename}:{error.lineno}"
        what = str(error) if isinstance(error, ZooError) else f"{type(error).__name__}: {error}"
        raise PluginError(f"{line}: the plugin cannot be imported: {what}") from error


def _is_forgotten(value: object, module: ModuleType) -> bool:
    """Whether a value is a configuration class of the module that has a `type` but is not registered."""
    if not (isinstance(value, type) and issubclass(value, Config) and value.__module__ == module.__name__):
        return False
    field = value.__pydantic_fields__.get("type")
    return field is not None and isinstance(field.default, str) and value not in _registered()


def _forget(module: ModuleType) -> None:
    """Remove the classes of a module from the registries."""
    for kind in Kind.registries.values():
        kind.restore({n: c for n, c in kind.registered.items() if c.__module__ != module.__name__})


def _modules() -> set[ModuleType]:
    """The modules that were named, and those outside of zoo that have registered classes."""
    return {*_named.values(), *(sys.modules[c.__module__] for c in _registered() if _is_foreign(c))}


def _registered() -> list[type[Config]]:
    return [cls for kind in Kind.registries.values() for cls in kind.registered.values()]


def _is_foreign(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in ("zoo", "torch")


def _classes_of(value: object) -> Iterator[type[Config]]:
    """The classes of a configuration and of all the configurations in it."""
    if isinstance(value, Config):
        yield type(value)
        value = value.__dict__
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _classes_of(item)
