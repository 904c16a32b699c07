"""Files of token ids: written document by document, read through a memory map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zoo.utils.errors import DataError

Dtype = Literal["uint16", "uint32"]


Ids: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids, (n,). Any: integers of the width that `dtype_for` chooses."""


def dtype_for(vocab_size: int) -> Dtype:
    """The smallest dtype that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


class TokenFile:
    """A one-dimensional array of token ids in a file, mapped into memory, read only.

    Args:
        path: file of little-endian ids without a header.
        dtype: dtype of an id.
        length: expected number of ids.

    Raises:
        DataError: The file is missing or has another size.
    """

    def __init__(self, path: Path, dtype: Dtype, length: int) -> None:
        expected = length * np.dtype(dtype).itemsize
        size = path.stat().st_size if path.is_file() else None
        if size != expected:
            state = "missing" if size is None else f"{size:,} bytes long"
            raise DataError(
                f"{path}: expected {length:,} tokens in {expected:,} bytes, but the file is {state}; "
                f"delete {path.parent} to prepare the data again"
            )
        self.path = path
        self._tokens = np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r", shape=(length,))

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self._tokens.shape[0])

    def read(self, start: int, stop: int) -> Ids:
        """The tokens from `start` to `stop`, or to the end of the file, (n,)."""
        return self._tokens[start:stop]

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Read windows of tokens; positions wrap around at the end of the file.

        Args:
            starts: (n,) int64 positions from 0.
            length: number of tokens in a window.

        Returns:
            (n, length) int64 token ids.
        """
        positions = starts[:, None] + np.arange(length)
        return self._tokens.take(positions, mode="wrap").astype(np.int64)


class TokenWriter:
    """Writes the ids of documents one after another, each followed by the end-of-document id.

    Args:
        path: file to create.
        dtype: dtype of an id.
        eos_id: id that ends a document.

    Attributes:
        documents: number of documents written so far.
        tokens: number of ids written so far, the ends of documents included.
        utf8_bytes: size of the written documents as UTF-8 text.
    """

    def __init__(self, path: Path, dtype: Dtype, eos_id: int) -> None:
        self._file = path.open("xb")
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._eos_id = eos_id
        self.documents = self.tokens = self.utf8_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, ids: Ids, utf8_bytes: int) -> None:
        """Append a document.

        Args:
            ids: (n,) token ids of the document, without the end-of-document id.
            utf8_bytes: size of the document as UTF-8 text.
        """
        document = np.append(ids, self._eos_id).astype(self._dtype)
        self._file.write(document.data)
        self.documents += 1
        self.tokens += len(document)
        self.utf8_bytes += utf8_bytes
