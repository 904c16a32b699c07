"""Which documents are held out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zoo.utils.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """Holds out the documents whose hash lies below a threshold.

    The hash is that of the document's id, so neither the order of the documents nor a document that
    is added moves any other. Only where the share would leave one side without a document does
    the threshold give way, by just one document.

    Attributes:
        threshold: documents with a smaller hash (0 to 2^64 - 1) are for validation.
    """

    threshold: int

    @classmethod
    def of(cls, ids: Iterable[str], share: float) -> Split:
        """Choose the threshold.

        Args:
            ids: the ids of all documents.
            share: the part of the documents to hold out, 0 (none) to below 1.

        Raises:
            DataError: there is only one document to divide.
        """
        threshold = int(share * 2**64)
        if threshold == 0:
            return cls(0)
        least, most = 2**64, -1
        for document in ids:
            value = _hash(document)
            least, most = min(least, value), max(most, value)
        if least >= most:
            raise DataError(
                f"data.validation is {share}, but the corpus has only one document, which cannot be divided; "
                "add text, choose smaller documents (data.corpus.document: passage or line), "
                "or set data.validation to 0"
            )
        return cls(min(max(threshold, least + 1), most))

    def holds_out(self, document: str) -> bool:
        """Whether the document with this id is for validation."""
        return _hash(document) < self.threshold


def divide(items: Sequence[T], texts: Sequence[str], share: float) -> tuple[list[T], list[T]]:
    """Hold out a share of things, by their texts, so that equal texts stay together.

    Args:
        items: what is divided.
        texts: what each is known by.
        share: the part to hold out, above 0 and below 1.

    Returns:
        Those to train on, and those that are held out.

    Raises:
        DataError: all texts are equal.
    """
    if len(set(texts)) == 1:
        raise DataError(
            f"data.validation is {share}, but all texts of data.train are the same, which cannot be divided; "
            "expected others as well, or data.validation: a file or null"
        )
    split = Split.of(texts, share)
    sides: tuple[list[T], list[T]] = ([], [])
    for item, text in zip(items, texts, strict=True):
        sides[split.holds_out(text)].append(item)
    return sides


def _hash(document: str) -> int:
    return int.from_bytes(hashlib.blake2b(document.encode("utf-8"), digest_size=8).digest(), "big")
