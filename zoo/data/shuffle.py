"""The order of examples: shuffled in every epoch to train on, spread evenly to evaluate on.

Both are pure functions of an `Order`. An epoch's permutation is keyed and computed, never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.data.dataset import Order
from zoo.utils.errors import DataError

ROUNDS = 6  # of the Feistel network; four are enough in theory, small networks like some more


class Part(NamedTuple):
    """The part of a batch that comes from one epoch.

    Attributes:
        inside: (share,) bool, which of this rank's examples they are.
        word: 64 random bits of the epoch.
        examples: int64, from 0 to the number of examples - 1.
    """

    inside: NDArray[np.bool_]
    word: int
    examples: NDArray[np.int64]


def shuffled(order: Order, count: int) -> Iterator[Part]:
    """Yield what an optimizer step of one rank consists of.

    Args:
        order: which batch.
        count: examples of an epoch.

    Yields:
        One part for each epoch that the batch reaches into.
    """
    numbers = np.arange(order.first, order.first + order.share, dtype=np.int64)
    for epoch in range(int(numbers[0]) // count, int(numbers[-1]) // count + 1):
        inside = numbers // count == epoch
        words = np.random.SeedSequence([order.seed, epoch]).generate_state(ROUNDS + 1, np.uint64)
        keys = words[1:].astype(np.uint64)
        yield Part(inside, int(words[0]), permute(numbers[inside] % count, count, keys))


def drawn(order: Order, count: int) -> NDArray[np.int64]:
    """The examples of an optimizer step of one rank, (share,) int64, where all epochs have the same.

    Args:
        order: which batch.
        count: examples of an epoch.
    """
    indices = np.empty(order.share, dtype=np.int64)
    for part in shuffled(order, count):
        indices[part.inside] = part.examples
    return indices


def spread(
    order: Order, count: int, batches: int | None, what: str
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the examples to evaluate on: the same ones at every call, in every run.

    The last batch may be smaller; every rank gets equally many examples of each.

    Args:
        order: the ranks and the size of a batch; seed and step are of no account.
        count: how many examples there are.
        batches: at most so many; None: all examples.
        what: they are, and where, for messages.

    Yields:
        The number of this rank's first example among those that are wanted, and the examples.

    Raises:
        DataError: fewer examples than ranks.
    """
    wanted = count if batches is None else min(count, batches * order.batch_size)
    wanted -= wanted % order.world
    if not wanted:
        raise DataError(f"{what} for {order.world} processes")
    examples = np.arange(wanted, dtype=np.int64) * count // wanted
    for first in range(0, wanted, order.batch_size):
        of_all = examples[first : first + order.batch_size]
        share = len(of_all) // order.world
        yield first + order.rank * share, of_all[order.rank * share : (order.rank + 1) * share]


def permute(numbers: NDArray[np.int64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Map each of 0 .. count - 1 to another one, no two to the same.

    A Feistel network (Luby and Rackoff 1988) permutes the next larger power of four; what falls
    outside goes through it again until it is inside (Black and Rogaway 2002, "cycle walking").

    Args:
        numbers: (n,) from 0 to `count` - 1.
        count: how many numbers there are.
        keys: one per round.

    Returns:
        (n,) their images.
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
