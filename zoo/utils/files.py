"""Reading files, for all of zoo: only regular files, up to a size limit for each kind of content.

Otherwise a FIFO or a link to /dev/zero instead of a file would hang the program or fill its memory.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from zoo.utils.errors import ZooError
from zoo.utils.untyped import Json

MIB = 1 << 20
CONFIG_BYTES = 16 * MIB
"""Largest number of bytes of a run's configuration, plugin, pointer or state."""
JSON_BYTES = 512 * MIB
"""Largest number of bytes of a tokenizer, index, description or manifest."""
METRICS_BYTES = 4096 * MIB
"""Largest number of bytes of a metrics.jsonl."""
TEXT_BYTES = 4096 * MIB
"""Largest number of bytes of a text that is read whole."""
LINE_BYTES = 1024 * MIB
"""Largest number of bytes of a line in a file that is read line by line."""

WITHOUT_WAITING, AS_BYTES = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_BINARY", 0)
"""Flags of os.open(): the first one is missing on Windows, the second one exists only there."""

Mistake = Callable[[str], ZooError]
"""The class of the error that a reader raises: a function of the message."""


def expand_home(path: str | Path) -> Path:
    """The path with a home folder for ``~`` or ``~user``; it stays as it is if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@contextmanager
def open_regular(path: Path, mistake: Mistake) -> Iterator[BufferedReader]:
    """Open a file for reading, without waiting for a writer.

    Args:
        path: a regular file, or a link to one.
        mistake: the class of the error.

    Raises:
        ZooError: The file is missing, cannot be read, or is no regular file; the class is `mistake`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | WITHOUT_WAITING | AS_BYTES)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise mistake(f"{path}: not a regular file; expected one, not a folder, pipe or device")
        with os.fdopen(descriptor, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise mistake(f"{path}: {error.strerror}").because_missing(path) from error
    except OSError as error:
        raise mistake(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, ZooError):
            raise
        raise mistake(f"{str(path)!r}: cannot be the name of a file: {error}") from error


def read_bytes(path: Path, limit: int, mistake: Mistake) -> bytes:
    """Read a whole file.

    Args:
        path: a regular file, or a link to one.
        limit: the largest number of bytes.
        mistake: the class of the error.

    Raises:
        ZooError: The file cannot be opened, see `open_regular`, or is larger than `limit`; the class is
            `mistake`.
    """
    with open_regular(path, mistake) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise mistake(f"{path}: {size:,} bytes; expected at most {limit:,} of a file like this")
        return file.read(size)


def read_text(path: Path, limit: int, mistake: Mistake) -> str:
    """Read a whole UTF-8 file; line ends stay as they are.

    Raises:
        ZooError: The file cannot be read, see `read_bytes`, or is not UTF-8; the class is `mistake`.
    """
    return decode(read_bytes(path, limit, mistake), path, mistake)


def decode(data: bytes, path: Path, mistake: Mistake) -> str:
    """Decode the bytes of a file.

    Raises:
        ZooError: The bytes are not UTF-8; the class is `mistake`.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise mistake(not_utf8(str(path), error.start, data[error.start])) from error


def check_text(text: str, place: str, mistake: Mistake) -> None:
    """Refuse a lone surrogate, by which a terminal represents bytes that are not UTF-8.

    Args:
        text: the text.
        place: the origin of the text, for the message.
        mistake: the class of the error.

    Raises:
        ZooError: The text has a lone surrogate; the class is `mistake`.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise mistake(f"{place}: character {error.start} is not UTF-8; expected text") from error


def not_utf8(place: str, offset: int, byte: int) -> str:
    """The message about a byte that is not UTF-8."""
    return f"{place}: byte {offset} (0x{byte:02x}) is not UTF-8; convert the file to UTF-8 or leave it out"


def read_json(path: Path, limit: int, mistake: Mistake) -> Json:
    """Read a file that holds one JSON value.

    Raises:
        ZooError: The file cannot be read, see `read_bytes`, or is not JSON; the class is `mistake`.
    """
    return parse_json(read_bytes(path, limit, mistake), path, mistake)


def parse_json(content: str | bytes, place: object, mistake: Mistake) -> Json:
    """The value of a JSON text.

    Args:
        content: the text.
        place: the origin of the text, for the message.
        mistake: the class of the error.

    Raises:
        ZooError: The text is not JSON, or exceeds Python's limits of digits or nested brackets; the class is
            `mistake`.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise mistake(f"{place}: not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise mistake(f"{place}: not JSON: {error}") from error
