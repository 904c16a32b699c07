"""The examples of a batch: shuffled in every epoch for training, spread evenly for validation.

Both are pure functions of a `BatchSpec`. The permutation of an epoch is computed from a key and never
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.data.dataset import BatchSpec
from zoo.utils.errors import DataError

ROUNDS = 6  # rounds of the Feistel network; four suffice in theory, small networks mix better with more


class EpochPart(NamedTuple):
    """The part of a batch that belongs to one epoch.

    Attributes:
        mask: (rank_batch_size,) bool, whether each of this rank's examples belongs to the epoch.
        random_word: 64 random bits of the epoch.
        examples: int64, the indices of these examples, from 0 to the number of examples - 1.
    """

    mask: NDArray[np.bool_]
    random_word: int
    examples: NDArray[np.int64]


def epoch_parts(spec: BatchSpec, count: int) -> Iterator[EpochPart]:
    """Yield the parts of a rank's training batch, one for each epoch that the batch reaches into.

    Args:
        spec: the specification of the batch.
        count: number of examples in an epoch.

    Raises:
        DataError: There are no examples.
    """
    if count == 0:
        raise DataError("the data set has no training examples; expected one or more")
    numbers = np.arange(spec.first_example, spec.first_example + spec.rank_batch_size, dtype=np.int64)
    for epoch in range(int(numbers[0]) // count, int(numbers[-1]) // count + 1):
        mask = numbers // count == epoch
        words = np.random.SeedSequence([spec.seed, epoch]).generate_state(ROUNDS + 1, np.uint64)
        keys = words[1:].astype(np.uint64)
        yield EpochPart(mask, int(words[0]), permute(numbers[mask] % count, count, keys))


def training_indices(spec: BatchSpec, count: int) -> NDArray[np.int64]:
    """Indices of the examples in a rank's training batch, (rank_batch_size,) int64.

    Args:
        spec: the specification of the batch.
        count: number of examples in an epoch.
    """
    indices = np.empty(spec.rank_batch_size, dtype=np.int64)
    for part in epoch_parts(spec, count):
        indices[part.mask] = part.examples
    return indices


class ValidationPart(NamedTuple):
    """A rank's part of a validation batch.

    Attributes:
        first: position of this rank's first example among those of all batches.
        indices: int64, the indices of this rank's examples, equally many on all ranks.
        fills_up: bool, which of them only fill up the last batch: the targets of those must be ignored.
    """

    first: int
    indices: NDArray[np.int64]
    fills_up: NDArray[np.bool_]


def validation_indices(
    spec: BatchSpec, count: int, max_batches: int | None, examples: str
) -> Iterator[ValidationPart]:
    """Yield a rank's part of each validation batch.

    All ranks together have the same examples at every call, in every run and with any number of ranks. The
    last batch may be smaller. If the ranks do not divide it, the last example is repeated to fill it up.

    Args:
        spec: batch size and ranks; seed and step have no effect.
        count: number of examples.
        max_batches: upper limit of the number of batches; None: all examples.
        examples: a description of the examples and their origin, for the error message.

    Raises:
        DataError: There are no examples.
    """
    if not count:
        raise DataError(f"{examples}: expected one at least")
    wanted = count if max_batches is None else min(count, max_batches * spec.batch_size)
    filled = -(-wanted // spec.world_size) * spec.world_size
    numbers = np.arange(filled, dtype=np.int64)
    indices = np.minimum(numbers, wanted - 1) * count // wanted
    for start in range(0, filled, spec.batch_size):
        share = min(spec.batch_size, filled - start) // spec.world_size
        first = start + spec.rank * share
        part = slice(first, first + share)
        yield ValidationPart(first, indices[part], numbers[part] >= wanted)


def permute(numbers: NDArray[np.int64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Apply a pseudorandom permutation of 0 .. count - 1.

    A Feistel network (Luby and Rackoff 1988) permutes the next larger power of four; an image outside the
    range goes through the network again until it is inside (Black and Rogaway 2002, "cycle walking").

    Args:
        numbers: (n,) int64 from 0 to `count` - 1.
        count: size of the permuted set.
        keys: one key per round.

    Returns:
        (n,) int64, their images.
    """
    half = max(1, (int(count - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    images = numbers.astype(np.uint64)
    outside = np.ones(len(images), dtype=bool)
    while outside.any():
        left, right = images[outside] >> bits, images[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        images[outside] = (left << bits) | right
        outside = images >= count
    return images.astype(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
