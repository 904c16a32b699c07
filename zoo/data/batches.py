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

from zoo.data.tokens import TokenFile
from zoo.errors import DataError

ROUNDS = 6  # of the Feistel network; four are enough in theory, small networks like some more


def windows_per_epoch(tokens: TokenFile, context: int) -> int:
    """How many sequences an epoch has: every one once, fewer than `context` tokens left out.

    Raises:
        DataError: there is not even one.
    """
    if len(tokens) <= context:
        raise DataError(
            f"{tokens.path}: {len(tokens):,} tokens, but one sequence needs context + 1 = {context + 1:,}"
        )
    return len(tokens) // context


def batch(
    tokens: TokenFile, *, seed: int, step: int, rank: int = 0, world: int = 1, batch_size: int, context: int
) -> tuple[Tensor, Tensor]:
    """The sequences of one optimizer step that belong to one rank.

    The batches of the ranks, joined in their order, are the batch of a single rank.

    Args:
        tokens: what to read.
        seed: of the order of the sequences.
        step: of the optimizer, from 0.
        rank: this process, from 0.
        world: number of processes; divides `batch_size`.
        batch_size: sequences of all ranks together.
        context: tokens per sequence.

    Returns:
        Inputs and targets, int64 (batch_size / world, context) on the CPU; targets are the inputs'
        successors.

    Raises:
        DataError: too few tokens, or a batch that does not divide among the ranks.
    """
    count = windows_per_epoch(tokens, context)
    if batch_size % world:
        raise DataError(f"a batch of {batch_size} sequences does not divide among {world} processes")
    share = batch_size // world
    first = step * batch_size + rank * share
    numbers = np.arange(first, first + share, dtype=np.int64)
    starts = np.empty_like(numbers)
    for epoch in range(first // count, (first + share - 1) // count + 1):
        inside = numbers // count == epoch
        offset, keys = _epoch(seed, epoch, len(tokens))
        starts[inside] = offset + context * permute(numbers[inside] % count, count, keys)
    return _pair(tokens, starts, context)


def validation_batches(
    tokens: TokenFile,
    *,
    batch_size: int,
    context: int,
    batches: int | None = None,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the sequences to evaluate on: the same ones at every call, in every run.

    With a limit they are spread evenly over the text. The last batch may be smaller; every rank gets
    equally many sequences of each, so weigh a batch by its number of targets.

    Args:
        tokens: what to read.
        batch_size: sequences of all ranks together.
        context: tokens per sequence.
        batches: at most so many; None: the whole text.
        rank: this process, from 0.
        world: number of processes; divides `batch_size`.

    Yields:
        Inputs and targets, int64 (at most batch_size / world, context) on the CPU.

    Raises:
        DataError: fewer sequences than ranks, or a batch that does not divide among the ranks.
    """
    windows_per_epoch(tokens, context)
    if batch_size % world:
        raise DataError(f"a batch of {batch_size} sequences does not divide among {world} processes")
    count = (len(tokens) - 1) // context
    wanted = count if batches is None else min(count, batches * batch_size)
    wanted -= wanted % world
    if not wanted:
        raise DataError(f"{tokens.path}: {count} sequences of {context} tokens for {world} processes")
    starts = context * (np.arange(wanted, dtype=np.int64) * count // wanted)
    for first in range(0, wanted, batch_size):
        of_all = starts[first : first + batch_size]
        share = len(of_all) // world
        yield _pair(tokens, of_all[rank * share : (rank + 1) * share], context)


def _pair(tokens: TokenFile, starts: NDArray[np.int64], context: int) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(tokens.windows(starts, context + 1))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


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
