"""Batches of sequences as a pure function of (seed, step, rank).

There is no loader and no state: a run that resumes at step 7000 asks for step 7000. An epoch cuts
the tokens, seen as a ring, into windows from an offset of its own and shuffles the windows with
a keyed permutation that is computed, never stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.dataset import Order
from zoo.data.tokens import TokenFile
from zoo.errors import DataError

ROUNDS = 6  # of the Feistel network; four are enough in theory, small networks like some more


def windows_per_epoch(tokens: TokenFile, stride: int, length: int) -> int:
    """How many windows an epoch has: every token once, fewer than `stride` of them left out.

    Raises:
        DataError: there is not even one.
    """
    if len(tokens) < length:
        raise DataError(f"{tokens.path}: {len(tokens):,} tokens, but one example is made from {length:,}")
    return len(tokens) // stride


def training_windows(tokens: TokenFile, order: Order, stride: int, length: int) -> Tensor:
    """The windows that an optimizer step of one rank is made from.

    Args:
        tokens: what to read.
        order: which batch.
        stride: tokens from one window to the next.
        length: tokens in a window.

    Returns:
        int64 (examples of the rank, length) on the CPU.

    Raises:
        DataError: too few tokens.
    """
    count = windows_per_epoch(tokens, stride, length)
    numbers = np.arange(order.first, order.first + order.share, dtype=np.int64)
    starts = np.empty_like(numbers)
    for epoch in range(int(numbers[0]) // count, int(numbers[-1]) // count + 1):
        inside = numbers // count == epoch
        offset, keys = _epoch(order.seed, epoch, len(tokens))
        starts[inside] = offset + stride * permute(numbers[inside] % count, count, keys)
    return torch.from_numpy(tokens.windows(starts, length))


def validation_windows(
    tokens: TokenFile, order: Order, stride: int, length: int, batches: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Yield the windows to evaluate on: the same ones at every call, in every run.

    With a limit they are spread evenly over the text. The last batch may be smaller; every rank gets
    equally many windows of each, so weigh a batch by its number of targets.

    Args:
        tokens: what to read.
        order: the ranks and the size of a batch; seed and step are of no account.
        stride: tokens from one window to the next.
        length: tokens in a window.
        batches: at most so many; None: the whole text.

    Yields:
        The number of this rank's first window, and the windows, int64 (examples of the rank, length).

    Raises:
        DataError: too few tokens, or fewer windows than ranks.
    """
    windows_per_epoch(tokens, stride, length)
    count = (len(tokens) - length) // stride + 1
    wanted = count if batches is None else min(count, batches * order.batch_size)
    wanted -= wanted % order.world
    if not wanted:
        raise DataError(f"{tokens.path}: {count} windows of {length} tokens for {order.world} processes")
    starts = stride * (np.arange(wanted, dtype=np.int64) * count // wanted)
    for first in range(0, wanted, order.batch_size):
        of_all = starts[first : first + order.batch_size]
        share = len(of_all) // order.world
        own = of_all[order.rank * share : (order.rank + 1) * share]
        yield first + order.rank * share, torch.from_numpy(tokens.windows(own, length))


def successors(windows: Tensor) -> tuple[Tensor, Tensor]:
    """(n, context + 1) tokens -> the first `context` and those that follow them, (n, context) each."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _epoch(seed: int, epoch: int, length: int) -> tuple[int, NDArray[np.uint64]]:
    """Where the epoch's first window begins, and the keys of its permutation."""
    words = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS + 1, np.uint64).astype(np.uint64)
    return int(words[0]) % length, words[1:]


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
