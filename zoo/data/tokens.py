"""Token ids in a file: written document by document, read through a memory map."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from zoo.utils.errors import DataError

Dtype = Literal["uint16", "uint32"]


def dtype_for(vocab_size: int) -> Dtype:
    """The smallest type that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


class TokenFile:
    """A one-dimensional array of token ids in a file, mapped into memory and never changed.

    Args:
        path: the file: ids in little-endian order and nothing else.
        dtype: type of an id.
        length: how many ids there must be.

    Raises:
        DataError: the file is missing or has another size.
    """

    def __init__(self, path: Path, dtype: Dtype, length: int) -> None:
        expected = length * np.dtype(dtype).itemsize
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            size = "missing" if found is None else f"{found:,} bytes long"
            raise DataError(
                f"{path}: expected {length:,} tokens in {expected:,} bytes, but the file is {size}; "
                f"delete {path.parent} to prepare the data again"
            )
        self.path = path
        self._tokens = np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r", shape=(length,))

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self._tokens.shape[0])

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Read stretches of tokens; past the last one the file begins again.

        Args:
            starts: (n,) positions from 0.
            length: tokens per stretch.

        Returns:
            (n, length) token ids.
        """
        positions = starts[:, None] + np.arange(length)
        return self._tokens.take(positions, mode="wrap").astype(np.int64)


class TokenWriter:
    """Writes the ids of documents one after another, each with the id that ends it.

    Args:
        path: file to make.
        dtype: type of an id.
        eos_id: what ends a document.

    Attributes:
        documents, tokens, utf8_bytes: what was written so far.
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

    def add(self, text: str, ids: list[int]) -> None:
        """Append a document.

        Args:
            text: its text, for the count of bytes.
            ids: its tokens.
        """
        self._file.write(np.array([*ids, self._eos_id], dtype=self._dtype).data)
        self.documents += 1
        self.tokens += len(ids) + 1
        self.utf8_bytes += len(text.encode("utf-8"))
