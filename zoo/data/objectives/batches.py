"""Batches of sequences as a pure function of (seed, step, rank).

There is no loader and no state: a run that resumes at step 7000 asks for step 7000. An epoch cuts
the tokens, seen as a ring, into windows from an offset of its own and shuffles the windows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from zoo.data.dataset import Order
from zoo.data.shuffle import shuffled, spread
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError


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
    starts = np.empty(order.share, dtype=np.int64)
    for part in shuffled(order, count):
        starts[part.inside] = part.word % len(tokens) + stride * part.examples
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
    what = f"{tokens.path}: {count} windows of {length} tokens"
    for first, windows in spread(order, count, batches, what):
        yield first, torch.from_numpy(tokens.windows(stride * windows, length))


def successors(windows: Tensor) -> tuple[Tensor, Tensor]:
    """(n, context + 1) tokens -> the first `context` and those that follow them, (n, context) each."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
