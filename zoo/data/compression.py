"""Compressed text: .gz and .xz by the standard library, .zst by pyarrow (the extra `data`)."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, cast

from zoo.utils.errors import DataError
from zoo.utils.extras import install
from zoo.utils.files import open_regular

PIECE = 1 << 20
"""Number of bytes that `read_content` decompresses at a time."""


def content_suffix(path: Path) -> str:
    """The suffix of a file's content: `.txt` for both a.txt and a.txt.gz."""
    return (path.with_suffix("") if path.suffix in _OPENERS else path).suffix


@contextmanager
def open_content(path: Path) -> Iterator[IO[bytes]]:
    """Open a file; one whose name ends in .gz, .xz or .zst is decompressed while it is read.

    Raises:
        DataError: The file cannot be opened or, while it is read, decompressed; or a package is missing.
    """
    with open_regular(path, DataError) as file:
        if path.suffix not in _OPENERS:
            yield file
            return
        try:
            with _OPENERS[path.suffix](path, file) as content:
                yield content
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            raise DataError(
                f"{path}: cannot be decompressed ({error}); the file is damaged, cut off or not {path.suffix}"
            ) from error


def read_content(path: Path, limit: int) -> bytes:
    """Read a whole file as `open_content` does, without holding more than the limit.

    Args:
        path: the file.
        limit: the largest number of bytes, after decompression.

    Raises:
        DataError: The file cannot be read, see `open_content`, or there are more bytes than the limit.
    """
    content = bytearray()
    with open_content(path) as file:
        while piece := file.read(min(PIECE, limit + 1 - len(content))):
            content += piece
            if len(content) > limit:
                raise DataError(f"{path}: expected at most {limit:,} bytes, after decompression")
    return bytes(content)


def _gz(_: Path, file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))


def _xz(_: Path, file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", lzma.open(file))


def _zst(path: Path, file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(require_pyarrow(path).CompressedInputStream(file, "zstd"))


def require_pyarrow(path: Path) -> ModuleType:
    """Import pyarrow, which is needed to read a file.

    Raises:
        DataError: Pyarrow is not installed.
    """
    try:
        import pyarrow  # an optional package
    except ImportError as error:
        raise DataError(f"{path}: {path.suffix} needs pyarrow: {install('data')}") from error
    module: ModuleType = pyarrow
    return module


_OPENERS: dict[str, Callable[[Path, IO[bytes]], IO[bytes]]] = {".gz": _gz, ".xz": _xz, ".zst": _zst}
