"""Finding files, reading them strictly, and creating a folder atomically."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from zoo.data.compression import content_suffix, open_content, read_content
from zoo.data.parquet import ARROW
from zoo.utils import files
from zoo.utils.atomic import write_folder
from zoo.utils.errors import CheckpointError, DataError
from zoo.utils.files import expand_home
from zoo.utils.progress import SECONDS_PER_LINE, progress
from zoo.utils.untyped import JsonObject

BOM = "\ufeff"
DATASET_DICT = "dataset_dict.json"
"""The file that `datasets` writes beside the folders of several data sets, some of them for tests."""
DATASET_STATE, DATA_FILES = "state.json", "_data_files"
"""The file that `datasets` writes beside the tables of a data set, and its key for the tables."""


def find_files(paths: Sequence[str], suffixes: Sequence[str], otherwise: Sequence[str] = ()) -> list[Path]:
    """Expand files, directories and glob patterns into files.

    Args:
        paths: files, directories and patterns; ``~`` is expanded, and relative paths are relative to the
            current folder.
        suffixes: suffixes of the files to take from a directory, compressed or not; they do not restrict
            files and globs.
        otherwise: suffixes of the files to take from a directory without files of the former suffixes.

    Returns:
        Absolute paths, each file once, in the order of `paths`, sorted by name within a directory or glob. A
        link keeps its own name, because the name that it leads to may lack the suffix. Of a data set that
        `datasets` has saved, they are the tables that its state.json lists, in that order.

    Raises:
        DataError: A path, pattern or directory yields no file, a directory or pattern yields a file in
            several forms, such as plain and compressed, or a directory has several data sets that `datasets`
            has saved, or lacks a table of one.
    """
    files: dict[Path, Path] = {}
    for written in paths:
        for file in _expand(written, suffixes, otherwise):
            files.setdefault(file.resolve(), _absolute(file))
    return list(files.values())


def _absolute(path: Path) -> Path:
    """The absolute path without ``..``; only links in front of one are resolved."""
    parts = path.absolute().parts
    end = max((number for number, part in enumerate(parts, 1) if part == ".."), default=0)
    return Path(*parts[:end]).resolve().joinpath(*parts[end:])


def _expand(written: str, suffixes: Sequence[str], otherwise: Sequence[str]) -> list[Path]:
    path = expand_home(written)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _expand_directory(path, written, suffixes, otherwise)
    if not glob.has_magic(written):
        raise DataError(f"{written}: no such file or directory{_start(path)}").because_missing(written)
    try:
        matches = [*Path(path.anchor).glob(str(path.relative_to(path.anchor)))]
    except ValueError as error:  # such as ** beside other characters, before Python 3.13
        raise DataError(f"{written}: not a pattern of files: {error}; for instance data/**/*.txt") from error
    files = sorted(match for match in matches if match.is_file())
    if not files:
        raise DataError(f"{written}: no file matches this pattern{_start(path)}").because_missing(written)
    _check_single(files)
    return files


def _expand_directory(
    path: Path, written: str, suffixes: Sequence[str], otherwise: Sequence[str]
) -> list[Path]:
    """The files of a directory; `written` is its path in messages."""
    if (path / DATASET_DICT).is_file():
        parts = sorted(part.name for part in path.iterdir() if part.is_dir())
        raise DataError(f"{written}: several data sets, {', '.join(parts)}; expected the folder of one")
    inside = _inside(path, suffixes) or _inside(path, otherwise)
    if not inside:
        wanted = " or ".join([*suffixes, *otherwise])
        others = sorted({file.suffix for file in _files_below(path) if file.suffix})
        there = f"; there are {', '.join(others[:5])}" if others else ""
        raise DataError(f"{written}: no file in this directory ends in {wanted}{there}")
    _check_single(inside)
    return inside


def _inside(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files in a folder and those below it whose content has one of the suffixes."""
    wanted = set(suffixes)
    found = sorted(file for file in _files_below(folder) if {file.suffix, content_suffix(file)} & wanted)
    return _without_caches(found) if ARROW in wanted else found


def _without_caches(found: Sequence[Path]) -> list[Path]:
    """Leave out the results of `map` and the like, which `datasets` keeps beside the tables of a data set.

    Raises:
        DataError: A table of a data set is missing.
    """
    listed = {folder: _tables(folder) for folder in {file.parent for file in found}}

    def place(file: Path) -> Path:
        tables = listed[file.parent]
        return file if tables is None else file.with_name(f"{tables.index(file):09}")

    kept = (file for file in found if (tables := listed[file.parent]) is None or file in tables)
    return sorted(kept, key=place)


def _tables(folder: Path) -> list[Path] | None:
    """The tables of a data set that `datasets` has saved in a folder; None: there is no data set.

    Raises:
        DataError: The file that lists the tables is no JSON object, or a table is missing.
    """
    state = folder / DATASET_STATE
    listed = read_object(state).get(DATA_FILES) if state.is_file() else None
    if not isinstance(listed, list):
        return None
    names = [item.get("filename") for item in listed if isinstance(item, dict)]
    tables = [folder / name for name in names if isinstance(name, str)]
    for table in tables:
        if not table.is_file():
            raise DataError(f"{state}: {DATA_FILES}: '{table.name}' is not there; expected every table")
    return tables


def _files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those below it, links to folders included.

    A folder is searched once, at the place where it really is if that is below `folder`. Links to folders
    above are not followed, because they lead in a circle.
    """
    root, searched, pending = folder.resolve(), set[Path](), deque([folder])
    while pending:
        for here, folders, names in os.walk(pending.popleft()):
            real = Path(here).resolve()
            if real in searched:
                folders.clear()
                continue
            searched.add(real)
            links = [Path(here, name) for name in sorted(folders) if Path(here, name).is_symlink()]
            pending += [link for link in links if not root.is_relative_to(link.resolve())]
            yield from (file for name in names if (file := Path(here, name)).is_file())


def _start(path: Path) -> str:
    """A clause on the folder that a relative path is relative to."""
    return "" if path.is_absolute() else f" in {Path.cwd()}"


def _check_single(found: Sequence[Path]) -> None:
    """Check that no content is there twice, plain or compressed: one could be held out and the other not.

    Raises:
        DataError: A file is beside its compressed copy, or two compressed copies of it are there.
    """
    contents: dict[Path, Path] = {}
    for file in found:
        content = file if content_suffix(file) == file.suffix else file.with_suffix("")
        other = contents.setdefault(content, file)
        if other != file:
            raise DataError(f"{file}: {other.name} is there as well; remove one, or name the files")


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        DataError: The file cannot be read.
    """
    return files.read_bytes(path, files.TEXT_BYTES, DataError)


def read_text(path: Path, *, blank: bool = False) -> str:
    """Read a UTF-8 file, compressed or not, without its byte order mark; line ends stay as they are.

    Args:
        path: the file.
        blank: whether the file may be blank.

    Raises:
        DataError: The file cannot be read, is not UTF-8, or is blank and may not be.
    """
    data = read_content(path, files.TEXT_BYTES)
    text = files.decode(data, path, DataError).removeprefix(BOM)
    if not text.strip() and not blank:
        raise DataError(f"{path}: the file is empty; leave it out")
    return text


def read_object(path: Path) -> JsonObject:
    """Read a file that holds one JSON object.

    Raises:
        DataError: The file cannot be read, is not JSON, or holds something other than an object.
    """
    content = files.read_json(path, files.JSON_BYTES, DataError)
    if not isinstance(content, dict):
        raise DataError(f"{path}: a {type(content).__name__}; expected an object")
    return content


def read_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Stream the lines of a UTF-8 file, compressed or not, that are not blank.

    Args:
        path: the file.
        blank: whether the whole file may be blank.

    Yields:
        Line number from 1, and the line without its line end and without a byte order mark.

    Raises:
        DataError: The file cannot be read, is not UTF-8, or is blank and may not be.
    """
    offset, has_text = 0, False  # offset: number of bytes before this line
    with open_content(path) as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(files.LINE_BYTES + 1), b""), 1):
            place = f"{path}:{number}"
            if len(raw) > files.LINE_BYTES:
                raise DataError(f"{place}: more than {files.LINE_BYTES:,} bytes; expected shorter lines")
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = raw[error.start]
                raise DataError(files.not_utf8(place, offset + error.start, byte)) from error
            offset += len(raw)
            line = (line.removeprefix(BOM) if number == 1 else line).rstrip("\r\n")
            if line.strip():
                has_text = True
                yield number, line
    if not has_text and not blank:
        raise DataError(f"{path}: the file is empty; leave it out")


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content, read in pieces.

    Raises:
        DataError: The file cannot be read.
    """
    with files.open_regular(path, DataError) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def build_once(folder: Path, fill: Callable[[Path], object]) -> bool:
    """Create a folder atomically and only once, even if several processes need it at the same time.

    One process creates it under a file lock; the others wait for the lock and find the result. The
    unfinished folder of a process that was killed is removed.

    Args:
        folder: the folder to create; if it exists it is complete, and nothing happens.
        fill: a function that writes the contents into a given empty folder.

    Returns:
        Whether this call created the folder.

    Raises:
        DataError: The folder cannot be written, for instance because the disk is full.
    """
    if folder.is_dir():  # Without the lock, because nothing can be written into a cache that others share.
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _held(FileLock(folder.with_name(folder.name + ".lock"))):
            if folder.is_dir():
                return False
            write_folder(folder, fill)
    except (OSError, CheckpointError) as error:
        raise DataError(
            f"{error}; data.cache_dir must be a place that can be written and has room"
        ) from error
    return True


@contextmanager
def _held(lock: FileLock) -> Iterator[None]:
    """Hold a lock, and show that this process waits while another one has the lock."""
    with suppress(Timeout):
        lock.acquire(timeout=0)
    if not lock.is_locked:
        with progress("waiting for another process, which prepares the same data") as advance:
            while not lock.is_locked:
                advance(0)
                with suppress(Timeout):
                    lock.acquire(timeout=SECONDS_PER_LINE)
    try:
        yield
    finally:
        lock.release()
