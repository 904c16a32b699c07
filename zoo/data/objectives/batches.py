"""Windows of a token file as pure functions of (seed, step, rank).

There is no loader with a state: a run that resumes at step 7000 requests the batch of step 7000. In an epoch
the tokens are treated as a ring, which is cut into windows from a random offset; the windows are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.data.dataset import BatchSpec
from zoo.data.shuffle import epoch_parts, validation_indices
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError


def windows_per_epoch(tokens: TokenFile, stride: int, length: int) -> int:
    """Number of windows in an epoch, which has every token once except for fewer than `stride` of them.

    Raises:
        DataError: The text is shorter than one window.
    """
    if len(tokens) < length:
        raise DataError(f"{tokens.path}: {len(tokens):,} tokens, but one example is made from {length:,}")
    return len(tokens) // stride


def training_windows(tokens: TokenFile, spec: BatchSpec, stride: int, length: int) -> Tensor:
    """The windows of a rank's training batch.

    Args:
        tokens: the training text.
        spec: the specification of the batch.
        stride: number of tokens from one window to the next.
        length: number of tokens in a window.

    Returns:
        (rank_batch_size, length) int64 on the CPU.

    Raises:
        DataError: The text is shorter than one window.
    """
    count = windows_per_epoch(tokens, stride, length)
    starts = np.empty(spec.rank_batch_size, dtype=np.int64)
    for part in epoch_parts(spec, count):
        starts[part.mask] = part.random_word % len(tokens) + stride * part.examples
    return torch.from_numpy(tokens.windows(starts, length))


class ValidationWindows(NamedTuple):
    """A rank's part of a validation batch.

    Attributes:
        first: position of this rank's first window among those of all batches.
        windows: (windows of this rank, length) int64.
        fills_up: (windows of this rank,) bool, which of them only fill up the last batch: their targets must
            be ignored.
    """

    first: int
    windows: Tensor
    fills_up: Tensor


def validation_windows(
    tokens: TokenFile, spec: BatchSpec, stride: int, length: int, max_batches: int | None = None
) -> Iterator[ValidationWindows]:
    """Yield the windows of each validation batch: the same ones at every call and in every run.

    With a limit they are spread evenly over the text. The last batch may be smaller; every rank gets the
    same number of windows of each batch.

    Args:
        tokens: the validation text.
        spec: batch size and ranks; seed and step have no effect.
        stride: number of tokens from one window to the next.
        length: number of tokens in a window.
        max_batches: upper limit of the number of batches; None: the whole text.

    Raises:
        DataError: The text is shorter than one window.
    """
    windows_per_epoch(tokens, stride, length)
    count = (len(tokens) - length) // stride + 1
    examples = f"{tokens.path}: {count} windows of {length} tokens"
    for first, indices, fills_up in validation_indices(spec, count, max_batches, examples):
        windows = torch.from_numpy(tokens.windows(stride * indices, length))
        yield ValidationWindows(first, windows, torch.from_numpy(fills_up))


def inputs_and_targets(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Split (n, context + 1) tokens into inputs and the tokens that follow them, (n, context) each."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
