"""The choice of documents or examples that are held out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zoo.data.files import find_files, sha256_file
from zoo.data.parquet import ARROW, PARQUET
from zoo.utils.errors import DataError
from zoo.utils.files import expand_home

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """Holds out the documents whose hash is below a threshold.

    The hash is that of the document's id, so that neither the order of the documents nor a new document moves
    another one to the other side. Ids of documents in files begin with the file's path relative to the common
    folder of all files: a file outside of that folder changes all ids, and with them the split.

    If the share leaves one side without a document, the threshold is moved just far enough to give it one.

    Attributes:
        threshold: documents with a smaller hash (0 to 2^64 - 1) are for validation.
        only: id of the only document for validation, whatever its hash; None: the threshold decides.
    """

    threshold: int
    only: str | None = None

    @classmethod
    def of(cls, ids: Iterable[str], share: float) -> Split:
        """Choose the threshold.

        Args:
            ids: the ids of all documents.
            share: fraction of the documents to hold out, 0 (none) to below 1.

        Raises:
            DataError: There is only one document, or all have the same id.
        """
        threshold = int(share * 2**64)
        if threshold == 0:
            return cls(0)
        count, least, most = 0, 2**64, -1
        for document in ids:
            count += 1
            value = _hash(document)
            least, most = min(least, value), max(most, value)
        if least >= most and count > 1:
            raise DataError(
                f"data.validation is {share}, but all {count} documents of the corpus have one id, by which "
                "they are divided; expected different ids, or data.validation 0"
            )
        if least >= most:
            raise DataError(
                f"data.validation is {share}, but the corpus has only one document, which cannot be divided; "
                "add text, choose smaller documents (data.corpus.document: passage or line), "
                "or set data.validation to 0"
            )
        return cls(min(max(threshold, least + 1), most))

    def holds_out(self, document: str) -> bool:
        """Whether the document with this id is for validation."""
        return _hash(document) < self.threshold if self.only is None else document == self.only


def check_validation(validation: str | float | None) -> None:
    """Check the value of `data.validation` where it is a file, a share of the training file, or null.

    Raises:
        ValueError: A share is not between 0 and 1.
    """
    if isinstance(validation, float) and not 0 < validation < 1:
        raise ValueError(f"validation is {validation:g}; expected a file, a share between 0 and 1, or null")


def read_split(
    train: str, validation: str | float | None, read: Callable[[Path], list[T]], key: Callable[[T], str]
) -> tuple[list[T], list[T]]:
    """Read the training and the validation examples.

    Args:
        train: file of the training examples, or a folder of tables.
        validation: file or folder of the validation examples, or the share of those in `train` to hold out,
            or None.
        read: a function that reads the examples of a file.
        key: a function that returns the text by whose hash an example is held out, so that equal texts stay
            on one side.

    Raises:
        DataError: A file cannot be used, or a share is to be held out of examples that all have the same key.
    """
    examples = _read_all(train, read)
    if validation is None:
        return examples, []
    if isinstance(validation, str):
        return examples, _read_all(validation, read)
    keys = [key(example) for example in examples]
    if len(set(keys)) == 1:
        raise DataError(
            f"data.validation is {validation}, but all texts of data.train are the same, which cannot be "
            "divided; expected others as well, or data.validation: a file or null"
        )
    split = Split.of(keys, validation)
    sides: tuple[list[T], list[T]] = ([], [])
    for example, text in zip(examples, keys, strict=True):
        sides[split.holds_out(text)].append(example)
    return sides


def _read_all(path: str, read: Callable[[Path], list[T]]) -> list[T]:
    """The examples of a file, or of all tables in a folder."""
    return [example for file in _files(path) for example in read(file)]


def _files(path: str) -> list[Path]:
    """A file, or the tables of a folder, such as one that `datasets` has saved.

    Raises:
        DataError: A folder has no table.
    """
    file = expand_home(path)
    return find_files([path], (PARQUET,), (ARROW,)) if file.is_dir() else [file]


def file_digests(train: str, *validation: str | float | None) -> list[str]:
    """The SHA-256 of the training files and of all validation values that are files."""
    paths = [train, *(path for path in validation if isinstance(path, str))]
    return [sha256_file(file) for path in paths for file in _files(path)]


def _hash(document: str) -> int:
    return int.from_bytes(hashlib.blake2b(document.encode("utf-8"), digest_size=8).digest(), "big")
