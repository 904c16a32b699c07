"""Files and folders that appear complete or not at all, even when the power fails."""

from __future__ import annotations

import errno
import glob
import logging
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from zoo.utils.errors import CheckpointError
from zoo.utils.processes import is_running

log = logging.getLogger("zoo")

PARTIAL = re.compile(r"\.(?P<name>.+?)(\.((?P<host>[0-9a-f]{8})-)?(?P<process>\d+)-[0-9a-f]{8})?\.partial")
"""Names of the temporary files of `write_file`; older ones name no host, those of zoo 0.2 no process."""
ABANDONED_SECONDS = 24 * 3600.0
"""Seconds without a change after which a temporary file of another host counts as abandoned."""


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Create or replace a file by renaming a temporary file in the same folder.

    The name of the temporary file is unique: of processes that write the same file at the same time, the last
    one wins.

    Args:
        path: the file; its folder is created if necessary.
        fill: a function that writes the content to a given path.

    Raises:
        CheckpointError: The file cannot be written, for instance because the disk is full; an existing file
            is untouched.
    """
    partial = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.partial")
    with explained(path):
        make_folder(path.parent)
        try:
            fill(partial)
            flush(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        flush(path.parent)
        left = path.parent.glob(f".{glob.escape(path.name)}.*-*.partial")
        remove(*(partial for partial in left if is_abandoned(partial, of=path.name)))


def is_abandoned(partial: Path, of: str | None = None) -> bool:
    """Whether a file has the name of a temporary file of `write_file` that no running process writes.

    Whether a process of another host runs is not known, so that its files are abandoned when they are old.

    Args:
        partial: the file.
        of: the name of the file to write; None: any.
    """
    found = PARTIAL.fullmatch(partial.name)
    if found is None or of not in (None, found["name"]):
        return False
    if found["host"] not in (None, _host()):
        with suppress(FileNotFoundError):
            return time.time() - partial.stat().st_mtime > ABANDONED_SECONDS
        return False
    return found["process"] is None or not is_running(int(found["process"]))


def _host() -> str:
    """A short name of this machine among those that share a file system: 8 hexadecimal digits."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def write_text(path: Path, text: str) -> None:
    """Create or replace a UTF-8 text file, as `write_file` does."""
    write_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Create or replace a folder by renaming a temporary folder beside it.

    Args:
        folder: the folder; those above it are created if necessary.
        fill: a function that writes the content into a given empty folder.

    Raises:
        CheckpointError: The folder cannot be written, for instance because the disk is full; an existing
            folder is untouched.
    """
    new = NewFolder(folder)
    try:
        new.create()
        with explained(folder):
            fill(new.partial)
        new.complete()
    finally:
        new.discard()


@dataclass(frozen=True)
class NewFolder:
    """A folder that several processes fill before it appears; one process calls the methods.

    Attributes:
        path: the folder, which `complete` creates or replaces.
    """

    path: Path

    @property
    def partial(self) -> Path:
        """The temporary folder to fill, beside `path`."""
        return self.path.with_name(f".{self.path.name}.partial")

    @property
    def _old(self) -> Path:
        return self.path.with_name(f".{self.path.name}.old")

    def create(self) -> None:
        """Create the empty folder to fill.

        Raises:
            CheckpointError: The folder cannot be created.
        """
        with explained(self.path):
            self._clean()
            make_folder(self.partial)

    def complete(self) -> None:
        """Replace the folder by the filled one.

        Raises:
            CheckpointError: The folder cannot be renamed; an existing folder is untouched.
        """
        with explained(self.path):
            for path in (*self.partial.rglob("*"), self.partial):
                flush(path)
            if self.path.exists():
                self.path.rename(self._old)
            self.partial.rename(self.path)
            remove(self._old)
            flush(self.path.parent)

    def discard(self) -> None:
        """Remove a folder that was not completed; a folder that it was to replace is kept."""
        with explained(self.path):
            self._clean()

    def _clean(self) -> None:
        """Undo what was begun, also where the process stopped between the two renames of `complete`."""
        if self._old.exists() and not self.path.exists():
            self._old.rename(self.path)
        remove(self.partial, self._old)


def create_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Create a folder that no other process has created, by one rename of a temporary folder beside it.

    Args:
        folder: the folder, which may exist if it is empty; those above it are created if necessary.
        fill: a function that writes the content into a given empty folder.

    Raises:
        CheckpointError: The folder cannot be written, or has content already.
    """
    folder = folder.resolve()  # A link to an empty folder stays a link.
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    with explained(folder):
        remove(partial)
        make_folder(partial)
        try:
            fill(partial)
            flush(partial)
            partial.rename(folder)
        finally:
            remove(partial)
        flush(folder.parent)
        # Left by killed starts. Those of a run "a.1", which may be about to appear, do not belong to a run
        # "a".
        of_this = re.compile(rf"\.{re.escape(folder.name)}\.\d+\.partial")
        remove(*(path for path in folder.parent.iterdir() if of_this.fullmatch(path.name)))


def make_folder(folder: Path) -> None:
    """Create a folder and those above it such that they survive a power failure."""
    missing = list(takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        flush(path.parent)


def require_folder(folder: Path) -> None:
    """Refuse a folder that cannot be created or written into, before the work whose result goes there.

    Args:
        folder: the folder, which need not exist; nothing is created.

    Raises:
        CheckpointError: The folder or one above it is a file, or nothing can be written into it.
    """
    _require_writable(folder, folder)


def require_file(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result goes there.

    Args:
        path: the file, which need not exist; nothing is created.

    Raises:
        CheckpointError: It is a folder, or its folder cannot be created or written into.
    """
    if path.is_dir():
        raise CheckpointError(f"{path}: is a folder; expected the name of a file")
    _require_writable(path, path.parent)


def require_new(path: Path, kind: str = "folder") -> None:
    """Refuse a path at which nothing new can be created, before the work whose result goes there.

    Args:
        path: the path; nothing is created.
        kind: what is to be created, for the message.

    Raises:
        CheckpointError: The path exists, or cannot be created.
    """
    if path.exists():
        raise CheckpointError(f"{path}: is there already; expected the name of a new {kind}")
    _require_writable(path, path)


def _require_writable(path: Path, folder: Path) -> None:
    """Refuse `path` if nothing can be written into `folder`, or into the lowest one above it that exists."""
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from error
        if not place.is_dir():
            raise CheckpointError(f"{path}: cannot be written: {place} is no folder; expected one")
        try:
            tempfile.TemporaryFile(dir=place).close()  # the only way to know, also for root
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written into {place}: {error.strerror}") from error
        return


def remove(*paths: Path) -> None:
    """Delete files, links, and folders with their content; missing paths are ignored."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def link(there: Path, here: Path) -> None:
    """Hard-link a file that is never written to again, or copy it if links are impossible.

    Args:
        there: the existing file.
        here: the new path.
    """
    try:
        here.hardlink_to(there)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(there, here)


def flush(path: Path) -> None:
    """Write a file or folder to disk (fsync).

    Nothing is done on Windows, which cannot open folders, and with folders of file systems that cannot flush
    them (EINVAL), such as SMB shares and folders that a virtual machine shares.
    """
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def warned(unless: bool = False) -> Iterator[None]:
    """Turn the error of a file that cannot be written into a warning.

    Args:
        unless: whether the error stays one, because the user has named the file.
    """
    try:
        yield
    except CheckpointError as error:
        if unless:
            raise
        log.warning("%s", error)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that names `path`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror or error}; what was saved before is intact"
        ) from error
