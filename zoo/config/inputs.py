"""Files that a configuration names: the folders that relative paths are relative to.

A relative path in a YAML file is relative to the folder of that file. If nothing is there, it is relative to
the current folder, as all paths were in earlier versions. Paths on the command line and from Python are
relative to the current folder, and so are those that zoo records in a run folder. A path that is in neither
folder stays unchanged; the error of its reader names the folders that were tried, see `looked_in`.
"""

from __future__ import annotations

import glob
import re
from contextlib import suppress
from pathlib import Path

from pydantic import BeforeValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from zoo.config.yaml import Located
from zoo.config.yaml import Path as Keys
from zoo.utils.files import expand_home
from zoo.utils.run_folder import RunFolder


class ReadsFiles:
    """Marks a field of a configuration that names files to read: ``train: Annotated[str, READS_FILES]``.

    An empty text is refused, because it would be the current folder.
    """

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the field, preceded by this check."""
        return core_schema.no_info_before_validator_function(check_not_empty, handler(source))


def check_not_empty(value: object) -> object:
    """A path, or a list or mapping of paths, none of which is empty.

    Raises:
        ValueError: A path is empty.
    """
    paths = [*value.values()] if isinstance(value, dict) else value
    if "" in (paths if isinstance(paths, list | tuple) else [paths]):
        raise ValueError("empty; expected the path of a file or folder")
    return value


READS_FILES = ReadsFiles()

NOT_EMPTY = BeforeValidator(check_not_empty)
"""Marks a field of a path that is written, which is relative to the current folder."""

LINE_OF_FILE = re.compile(r"(.+):\d+", re.DOTALL)
"""The place of a value that was read from a file; the place of an override is its quoted text."""


def from_current_folder(value: Located) -> Located:
    """Turn the paths of a field into paths relative to the current folder.

    Args:
        value: a path or a pattern, or a list or mapping of them; other values stay as they are.
    """
    if isinstance(value.value, dict):
        return Located({key: from_current_folder(item) for key, item in value.value.items()}, value.place)
    if isinstance(value.value, list):
        return Located([from_current_folder(item) for item in value.value], value.place)
    if not isinstance(value.value, str) or not value.value:
        return value
    return Located(_path_from_current_folder(value.value, value.place), value.place)


def folder_of(written: Located, otherwise: Path) -> Path:
    """The folder of the file in which a value was written.

    Args:
        written: the value; a merged mapping has values of several files.
        otherwise: the folder of values that were not read from a file.
    """
    match = LINE_OF_FILE.fullmatch(written.place)
    return Path(match[1]).parent if match else otherwise


def key_of(given: Located, missing: Path) -> Keys | None:
    """The first key whose value is a given path; None: no key has this value.

    Args:
        given: the configuration.
        missing: the path as the configuration names it.
    """
    if isinstance(given.value, dict | list):
        items = given.value.items() if isinstance(given.value, dict) else enumerate(given.value)
        inside = ((key, key_of(item, missing)) for key, item in items)
        return next(((key, *keys) for key, keys in inside if keys is not None), None)
    return () if isinstance(given.value, str) and Path(given.value) == missing else None


def looked_in(given: Located, missing: Path) -> str:
    """The folders in which a missing path was looked for, as the end of a message.

    Args:
        given: the configuration, with the places where its values were written.
        missing: the path as the configuration names it.

    Returns:
        A clause with the folder of the file that names the path and the current folder; "" if only the
        current one was tried.
    """
    keys = key_of(given, missing)
    if keys is None:
        return ""
    value = given.find(keys)[0]
    folder = _own_folder(value.value, value.place)
    return "" if folder is None else f" (looked in {folder.resolve()} and in {Path.cwd()})"


def _path_from_current_folder(written: str, place: str) -> str:
    folder = _own_folder(written, place)
    if folder is None or not _is_there(folder, written):
        return written
    # A folder whose name has [, ? or * is no part of the pattern.
    is_pattern = glob.has_magic(written) and not (folder / written).exists()
    return str(Path(glob.escape(str(folder))) / written if is_pattern else folder / written)


def _own_folder(written: str, place: str) -> Path | None:
    """The folder in which a path is looked for before the current one; None: there is no such folder."""
    if expand_home(written).is_absolute():
        return None
    folder = folder_of(Located(written, place), Path())
    # Paths that zoo records in a run folder are relative to the current folder already.
    return None if folder == Path() or RunFolder(folder).metrics.is_file() else folder


def _is_there(folder: Path, written: str) -> bool:
    with suppress(OSError, ValueError):  # an impossible path is reported by its reader
        if (folder / written).exists():
            return True
        return glob.has_magic(written) and next(folder.glob(written), None) is not None
    return False
