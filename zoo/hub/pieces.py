"""A sentencepiece model's own account of itself: its pieces, and what it does to a text first.

The .model file is a protocol buffer (sentencepiece_model.proto); the few fields that matter here are read
by their numbers, so that no further library is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What a piece is, ``ModelProto.SentencePiece.Type``."""

    TEXT = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Piece(NamedTuple):
    """A piece, in the order of the ids."""

    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class Pieces:
    """A sentencepiece model.

    Attributes:
        pieces: by their ids.
        algorithm: 1 unigram, 2 BPE, others are words and characters.
        charsmap: the table of normalisations, compiled; empty: characters stay as they are.
        prefix: whether a text gets a blank in front.
        squeezed: whether blanks in a row, in front and at the end go.
        escaped: whether blanks are written as U+2581.
        suffix: whether blanks belong to the word before them.
    """

    pieces: tuple[Piece, ...]
    algorithm: int
    charsmap: bytes
    prefix: bool
    squeezed: bool
    escaped: bool
    suffix: bool

    @classmethod
    def read(cls, model: bytes) -> Pieces:
        """Read the content of a .model file that sentencepiece has opened."""
        proto = list(_fields(model))
        trainer = _message(proto, 2)
        normalizer = _message(proto, 3)
        return cls(
            pieces=tuple(_piece(dict(_fields(bytes(value)))) for number, value in proto if number == 1),
            algorithm=int(trainer.get(3, 1)),
            charsmap=bytes(normalizer.get(2, b"")),
            prefix=bool(normalizer.get(3, True)),
            squeezed=bool(normalizer.get(4, True)),
            escaped=bool(normalizer.get(5, True)),
            suffix=bool(trainer.get(24, False)),
        )

    def of(self, kind: Kind) -> list[Piece]:
        """The pieces of a kind."""
        return [piece for piece in self.pieces if piece.kind == kind]


def _piece(fields: dict[int, int | bytes]) -> Piece:
    (score,) = struct.unpack("<f", bytes(fields.get(2, bytes(4))))
    return Piece(bytes(fields[1]).decode("utf-8"), score, Kind(int(fields.get(3, Kind.TEXT))))


def _message(proto: list[tuple[int, int | bytes]], number: int) -> dict[int, int | bytes]:
    """The fields of a message within a message; the last one counts, as protocol buffers have it."""
    found = [bytes(value) for at, value in proto if at == number]
    return dict(_fields(found[-1])) if found else {}


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: whole numbers, or the bytes of anything else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}[wire] if wire != 2 else varint()
        yield number, message[at : at + size]
        at += size
