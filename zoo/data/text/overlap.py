"""How much of the validation text occurs in the training text: an advantage to a model that memorises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoo.data.files import build_once, read_object
from zoo.data.tokens import Ids, TokenFile
from zoo.utils.progress import progress

WINDOW = 200
"""Length of a window in bytes of text, some fifty tokens of a usual tokenizer."""
CHUNK = 1 << 20
"""Number of tokens that are read at a time."""
FILE = "overlap.json"
KEY = "overlap"
BASE = 0x9E3779B97F4A7C15
"""The base of the polynomial hash, an odd number, so that it has an inverse modulo 2^64."""
BITS = 20
"""Number of bits of a hash by which most positions of the training text are ruled out."""

Hashes = NDArray[np.uint64]


def known_overlap(folder: Path) -> float | None:
    """The overlap that was measured before; None if it was not.

    Args:
        folder: the folder of the result of `measure_overlap`.

    Raises:
        DataError: The file was damaged.
    """
    file = folder / FILE
    return float(read_object(file)[KEY]) if file.is_file() else None


def measure_overlap(
    folder: Path, train: TokenFile, validation: TokenFile, eos_id: int, utf8_bytes: int
) -> float:
    """`overlap`, measured once and kept.

    Args:
        folder: the folder of the result.
        train: the training tokens.
        validation: the validation tokens.
        eos_id: the id that ends a document.
        utf8_bytes: size of the validation text.

    Raises:
        DataError: The folder cannot be written.
    """
    length = max(1, round(WINDOW * len(validation) / max(1, utf8_bytes)))

    def fill(partial: Path) -> None:
        share = overlap(train, validation, eos_id, length)
        (partial / FILE).write_text(json.dumps({KEY: share}) + "\n", encoding="utf-8")

    build_once(folder, fill)
    known = known_overlap(folder)
    assert known is not None  # `build_once` has written it, or found it
    return known


def overlap(train: TokenFile, validation: TokenFile, eos_id: int, length: int) -> float:
    """The share of the validation tokens that occur in the training text.

    Every document is divided into windows of `length` tokens from its start; the rest of it counts with the
    window at its end. A window counts if the same tokens follow each other anywhere in the training text, and
    a document shorter than a window if the training text has the same document. It is a lower bound, because
    a tokenizer may divide the same text in two ways. Windows are compared by hashes of 64 bits.

    Args:
        train: the training tokens.
        validation: the validation tokens.
        eos_id: the id that ends a document.
        length: number of tokens of a window.
    """
    starts: list[int] = []
    weights: list[int] = []
    short: dict[bytes, int] = {}
    total = 0
    for begin, end in _documents(validation, eos_id):
        total += end - begin
        if end - begin < length:
            text = validation.read(begin, end).tobytes()
            short[text] = short.get(text, 0) + end - begin
            continue
        whole = range(begin, end - length + 1, length)
        starts += whole
        weights += [length] * len(whole)
        if rest := (end - begin) % length:
            starts.append(end - length)
            weights.append(rest)
    if not total:
        return 0.0
    found = _tokens_of(short, train, eos_id, length)
    if starts:
        windows = _hashes(validation.windows(np.array(starts), length).ravel(), length)[::length]
        found += int(np.array(weights)[_occurring(windows, train, length)].sum())
    return found / total


def _documents(tokens: TokenFile, eos_id: int) -> Iterator[tuple[int, int]]:
    """Begin and end of every document that is not empty, without the token that ends it."""
    begin = 0
    for first in range(0, len(tokens), CHUNK):
        for end in (np.flatnonzero(tokens.read(first, first + CHUNK) == eos_id) + first).tolist():
            if end > begin:
                yield begin, end
            begin = end + 1
    if begin < len(tokens):
        yield begin, len(tokens)


def _tokens_of(short: dict[bytes, int], train: TokenFile, eos_id: int, length: int) -> int:
    """The number of validation tokens in short documents that are training documents as well."""
    left = dict(short)
    found = 0
    for begin, end in _documents(train, eos_id) if left else ():
        if end - begin < length:
            found += left.pop(train.read(begin, end).tobytes(), 0)
    return found


def _occurring(windows: Hashes, train: TokenFile, length: int) -> NDArray[np.bool_]:
    """Whether each window, given by its hash, is anywhere in the training tokens."""
    known = np.unique(windows)
    likely = np.zeros(1 << BITS, dtype=np.bool_)
    likely[known >> np.uint64(64 - BITS)] = True
    seen = np.zeros(len(known), dtype=np.bool_)
    with progress("comparing with the validation text", len(train)) as advance:
        for first in range(0, len(train) - length + 1, CHUNK):
            hashes = _hashes(train.read(first, first + CHUNK + length - 1), length)
            hashes = hashes[likely[hashes >> np.uint64(64 - BITS)]]
            places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
            seen[places[known[places] == hashes]] = True
            advance(CHUNK)
    return seen[np.searchsorted(known, windows)]


def _hashes(ids: Ids | NDArray[np.int64], length: int) -> Hashes:
    """The hash of the window at every position: sum of mixed ids times powers of `BASE`, modulo 2^64."""
    mixed = _mixed(ids.astype(np.uint64))
    count = len(ids)
    powers = _powers(BASE, count)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed * powers, dtype=np.uint64)])
    back = _powers(pow(BASE, -1, 1 << 64), count - length + 1)
    return _mixed((sums[length:] - sums[:-length]) * back)


def _powers(base: int, count: int) -> Hashes:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _mixed(values: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that spreads neighbours over all bits (Stafford's variant 13)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
