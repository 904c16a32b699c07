"""Files and folders that appear complete or not at all, even when the power fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.utils.errors import CheckpointError


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Make `path`, replacing what is there, by way of a file beside it.

    Args:
        path: the file to make; its folder is made as well.
        fill: writes the content to the path that it is given.

    Raises:
        CheckpointError: the system refuses, for instance because the disk is full; what was at
            `path` before is untouched.
    """
    partial = path.with_name(f".{path.name}.partial")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fill(partial)
            flush(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """Make a UTF-8 text file as `write_file` does."""
    write_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Make `folder`, replacing what is there, by way of a folder beside it.

    Args:
        folder: the folder to make, and those above it.
        fill: writes the content into the empty folder that it is given.

    Raises:
        CheckpointError: the system refuses, for instance because the disk is full; what was at
            `folder` before is untouched.
    """
    partial, old = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "old"))
    with explained(folder):
        remove(partial, old)
        partial.mkdir(parents=True)
        try:
            fill(partial)
            for path in (*partial.iterdir(), partial):
                flush(path)
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
        finally:
            remove(partial, old)
        flush(folder.parent)


def remove(*folders: Path) -> None:
    """Delete folders that may or may not exist, with what they hold."""
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)


def link(there: Path, here: Path) -> None:
    """Put a file that is never written to again in a second place: at no cost, or as a copy.

    Args:
        there: the file.
        here: its second name.
    """
    try:
        here.hardlink_to(there)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(there, here)


def flush(path: Path) -> None:
    """Have the system write a file's or a folder's content to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a refusal of the system into one sentence."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror or error}; what was saved before is intact"
        ) from error
