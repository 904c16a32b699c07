"""How a configuration is composed: `extends`, plugins, and overrides from the command line.

Mappings are merged key by key. A component (a mapping with a `type`) of another type replaces the one below
it, and so does a model that is taken `from` a checkpoint, so that no field of one type stays in another.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from zoo.config.inputs import folder_of
from zoo.config.plugins import CLASS_PATH, PluginRecord, import_class, load_installed, load_plugin, require
from zoo.config.registry import Kind
from zoo.config.yaml import Located, read_value, read_yaml
from zoo.utils.errors import ConfigError, PluginError, did_you_mean, joined_message
from zoo.utils.files import CONFIG_BYTES, check_text, expand_home, read_bytes
from zoo.utils.run_folder import CheckpointFolder, RunFolder

PLUGINS = "plugins"
RUN_FILES = frozenset({RunFolder.CONFIG, CheckpointFolder.CONFIG})
"""The file names of a run's configuration in its folder and in those of its checkpoints."""
SUFFIXES = (".yaml", ".yml")
LONGEST_NAME = 60
"""Largest number of characters of a name that a message shows."""
ASSUMED = {"data": "text"}
"""The type that a component below another one has if it writes none, by its key (`Config.assumed`)."""
FILES = frozenset({"validation"})
"""Keys whose strings are files, and whose mappings are files by names: none is the short form of another."""
FROM = "from"
"""The key of a model that is taken from a checkpoint."""


def shipped() -> dict[str, Path]:
    """The configurations that come with zoo: name to file."""
    package = Path(__file__).parent.parent
    # In a wheel the configurations are part of the package, in a checkout they are beside it.
    folder = next(f for f in (package / "configs", package.parent / "configs") if f.is_dir())
    return {file.stem: file for file in sorted(folder.glob("*.yaml"), key=lambda file: file.stem)}


def find_config(source: str | Path, folder: Path = Path(), *, architectures: Collection[str] = ()) -> Path:
    """Find the file of a configuration that is given as a path or as the name of a shipped one.

    Args:
        source: a path (with the suffix .yaml or a separator), a run folder, or a name.
        folder: the folder that a relative path is relative to.
        architectures: names that the caller takes in the place of a configuration, for the message.

    Raises:
        ConfigError: There is no such file.
    """
    text = os.fspath(source)
    path = folder / expand_home(text)
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        shown = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."
        raise ConfigError(f"{shown!r}: cannot be the name of a file: {error}") from error
    if RunFolder(path).exists:
        return RunFolder(path).config
    if path.is_file():
        return path
    if path.is_dir() and text not in shipped():
        raise ConfigError(
            f"{path}: a folder without {RunFolder.CONFIG}; expected a run, a YAML file, or a name of "
            f"`zoo list configs` (a model is taken over by `model: {{{FROM}: {text}}}` in a file)"
        )
    if path.suffix in SUFFIXES or len(path.parts) > len(folder.parts) + 1:
        near = [str(f) for f in path.parent.glob("*") if f.suffix in SUFFIXES]
        raise ConfigError(f"{path}: no such file{did_you_mean(str(path), near)}")
    if text not in shipped():
        kind = "config or architecture" if architectures else "config"
        if "=" in text:
            raise ConfigError(f"no {kind} called '{text}'; expected its name or file, then values KEY=VALUE")
        beside = [text + suffix for suffix in SUFFIXES if Path(f"{path}{suffix}").is_file()]
        meant = (
            f"; did you mean '{beside[0]}'?" if beside else did_you_mean(text, [*shipped(), *architectures])
        )
        raise ConfigError(f"no {kind} called '{text}'{meant}")
    return shipped()[text]


def read_named(file: Path, problems: list[str]) -> Located:
    """`read_config`, with the name of the file as `name` if the file has none.

    Raises:
        ConfigError: A file cannot be read or extends itself, or a plugin cannot be used.
    """
    given = read_config(file, problems)
    if isinstance(given.value, dict) and "name" in given.value:
        return given
    return merge(name_of_file(file), given)


def name_of_file(file: Path) -> Located:
    """A mapping with the name of a file as its `name`, for a file without this key."""
    place = f"{file} (the name of the file, as it has no key `name`)"
    return Located({"name": Located(file.stem, place)}, str(file))


def read_config(
    file: Path, problems: list[str], above: tuple[Path, ...] = (), trusted: bool = True
) -> Located:
    """Read a file and all files that it extends, and import the plugins that they name.

    Args:
        file: YAML.
        problems: a list to which one line is added for each problem.
        above: the files that extend this one.
        trusted: whether the file may name plugins to import. Files that zoo writes into run folders may not,
            and neither may the files that they extend, because a run folder can come from anywhere.

    Raises:
        ConfigError: A file cannot be read or extends itself, or a plugin cannot be used.
    """
    if file.resolve() in above:
        chain = " -> ".join(f.name for f in (*above, file))
        raise ConfigError(f"{_display_path(file)}: extends itself: {chain}")
    try:
        text = read_bytes(file, CONFIG_BYTES, ConfigError).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_display_path(file)}: not UTF-8 at byte {error.start}") from error
    except ConfigError as error:
        reason = str(error).removeprefix(f"{file}: ")
        raise ConfigError(f"{_display_path(file)}: cannot be read: {reason}") from error
    trusted = trusted and file.name not in RUN_FILES
    fields = read_yaml(text, _display_path(file), problems)
    return extend(fields, file.parent, problems, (*above, file.resolve()), trusted)


def extend(
    fields: Located,
    folder: Path,
    problems: list[str],
    above: tuple[Path, ...] = (),
    trusted: bool = True,
    imported: bool = False,
) -> Located:
    """Merge a mapping over the files that its key `extends` names, which are composed from left to right.

    Args:
        fields: the mapping; the plugins that it names are imported.
        folder: the folder that paths are relative to which were not read from a file.
        problems: a list to which one line is added for each problem.
        above: the file that the mapping was read from, and the files that extend it.
        trusted: whether the mapping may name plugins to import, see `read_config`.
        imported: whether the mapping is a part of one whose classes have been imported. Their paths have no
            folders any more, so that they cannot be imported again.

    Raises:
        ConfigError: A file cannot be read or extends itself, or a plugin cannot be used.
    """
    load_installed()
    if PLUGINS in fields.value:
        import_named(fields.value[PLUGINS], folder, trusted)
        fields = _without(fields, PLUGINS)
    if trusted and not imported:
        fields = import_classes(fields, folder)
    if "extends" not in fields.value:
        return fields
    names = fields.value["extends"]
    merged = Located({}, fields.place)
    for parent in names.value if isinstance(names.value, list) else [names]:
        if not isinstance(parent.value, str):
            problems.append(f"{parent.place}: extends: value {parent.value!r}: expected a name or a path")
            continue
        try:
            file = find_config(parent.value, folder_of(parent, folder))
        except ConfigError as error:
            problems.append(f"{parent.place}: extends: {error}")
            continue
        merged = merge(merged, read_config(file, problems, above, trusted))
    return merge(merged, _without(fields, "extends"))


def merge(base: Located, over: Located, key: str = "") -> Located:
    """Merge two values, key by key where both are mappings; where they conflict, `over` wins.

    A component whose `type` differs replaces the one in `base`. A mapping of indices changes single items
    of a list.

    Args:
        base: the value below.
        over: the value above.
        key: the key of both; "" is the key of whole configurations.
    """
    if isinstance(base.value, list) and isinstance(over.value, dict):
        return _merge_list(base, over)
    if not isinstance(over.value, dict) and not (isinstance(base.value, dict) and "type" in base.value):
        return over
    if key in FILES and isinstance(base.value, dict) != isinstance(over.value, dict):
        return over
    below, above = items_of(base), items_of(over)
    if below is None or above is None or _replaces(below, above, key):
        return over
    merged = dict(below)
    for name, value in above.items():
        merged[name] = merge(merged[name], value, name) if name in merged else value
    return Located(merged, base.place or over.place)


def parse_overrides(overrides: Sequence[str], problems: list[str]) -> Located:
    """Read overrides ``a.b=c`` as one mapping, to be merged over a configuration.

    Args:
        overrides: texts ``a.b=c``, in any order, because components are set before their fields. Of two
            values for one key the last one wins.
        problems: a list to which one line is added for each problem.

    Raises:
        ConfigError: An override names a class by a path that cannot be imported, or is not UTF-8, or there is
            one string instead of a sequence of strings.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides: value {overrides!r}: expected a list of strings, [{overrides!r}]")
    result = Located({}, "")
    pairs = []
    for text in overrides:
        check_text(text, f"override {text!r}", ConfigError)
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")) or not value.strip():
            problems.append(f"override '{text}': expected key=value, for instance optimizer.lr=1e-3")
        elif key.split(".")[0] == PLUGINS:
            problems.append(
                f"override '{text}': plugins are no value of a configuration; expected them under "
                f"`{PLUGINS}:` in a file, or as --plugin FILE"
            )
        else:
            pairs.append((key.split("."), value, f"override '{text}'"))
    for keys, value, place in sorted(pairs, key=lambda pair: (len(pair[0]), pair[0][-1] != FROM)):
        located = read_value(value, place, problems)
        if located is None:
            continue
        for key in reversed(keys):
            located = Located({key: located}, place)
        result = merge(result, located)
    return import_classes(result, Path())


def items_of(node: Located) -> dict[str, Located] | None:
    """The items of a mapping, or of the mapping that a string is the short form of; None otherwise."""
    if isinstance(node.value, str):
        return {"type": node}
    return node.value if isinstance(node.value, dict) else None


def _replaces(below: dict[str, Located], above: dict[str, Located], key: str) -> bool:
    """Whether a component replaces the one below it, none of whose fields then stays."""
    if FROM in above:
        return True
    before = below["type"].value if "type" in below else ASSUMED.get(key)
    return before is not None and "type" in above and bool(before != above["type"].value)


def _merge_list(base: Located, over: Located) -> Located:
    """Override single items of a list: ``eta_overrides.0.eta=1``."""
    items = list(base.value)
    for key, value in over.value.items():
        if not key.isdecimal() or int(key) >= len(items):
            return over
        items[int(key)] = merge(items[int(key)], value)
    return Located(items, base.place)


def import_named(plugins: Located, folder: Path, trusted: bool) -> None:
    """Import the plugins that a mapping names, and check those that it records.

    Args:
        plugins: a list of paths and names of modules or, in files that zoo wrote, of `PluginRecord` as
            mappings.
        folder: the folder that paths are relative to which were not read from a file; a run folder, if
            plugins are recorded.
        trusted: whether paths and names may be imported.

    Raises:
        ConfigError: A plugin cannot be imported, or a recorded one is missing or has changed; one line
            for each.
    """
    if not isinstance(plugins.value, list):
        raise ConfigError(f"{plugins.place}: plugins: value {plugins.plain()!r}: expected a list of plugins")
    problems = []
    for item in plugins.value:
        try:
            if isinstance(item.value, dict):
                require(PluginRecord.model_validate(item.plain()), RunFolder(folder).plugins)
            elif not isinstance(item.value, str):
                raise PluginError(f"value {item.value!r}: expected a Python file or the name of a module")
            elif not trusted:
                raise PluginError(
                    f"code is never imported from a run folder: name it with --plugin {item.value}"
                )
            else:
                load_plugin(item.value, folder_of(item, folder))
        except ValidationError as error:
            problems.append(
                f"{item.place}: plugins: expected what zoo records of a plugin: {error.errors()[0]['msg']}"
            )
        except PluginError as error:
            problems.append(joined_message(item.place, "plugins", str(error)))
    if problems:
        raise ConfigError("\n".join(problems))


def import_classes(node: Located, folder: Path, key: str = "") -> Located:
    """Import the modules of classes whose path is the value of a key `type`, or of a component's own key.

    Args:
        node: the configuration as the user wrote it.
        folder: the folder that paths are relative to which were not read from a file.
        key: the dotted keys that lead to `node`.

    Returns:
        The configuration, in which files are named without their folders.

    Raises:
        ConfigError: A module cannot be imported.
    """
    if isinstance(node.value, dict):
        items = node.value.items()
        inside = {name: import_classes(v, folder, f"{key}.{name}".lstrip(".")) for name, v in items}
        return Located(inside, node.place)
    if isinstance(node.value, list):
        return Located([import_classes(item, folder, key) for item in node.value], node.place)
    if not (isinstance(node.value, str) and CLASS_PATH.fullmatch(node.value) and _names_class(key)):
        return node
    try:
        return Located(import_class(node.value, folder_of(node, folder), again=not node.place), node.place)
    except PluginError as error:
        raise ConfigError(joined_message(node.place, key, str(error))) from error


def _names_class(key: str) -> bool:
    """Whether the path of a class may be the value of a key: a `type`, or a component in its short form.

    Args:
        key: the dotted key.
    """
    kinds = [kind for kind in Kind.registries.values() if key in (kind.name, f"axes.{kind.name}")]
    # The import of zoo's own choices sets `adapt`.
    return key.split(".")[-1] == "type" or any(kind.choices and kind.adapt for kind in kinds)


def _without(fields: Located, key: str) -> Located:
    """A mapping without one of its keys."""
    return Located({name: item for name, item in fields.value.items() if name != key}, fields.place)


def _display_path(file: Path) -> str:
    """The path relative to the working directory, if the file is below it."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
