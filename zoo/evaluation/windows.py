"""Sliding windows over a text, in which every token is predicted once from a long enough context."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import ZooError


def sliding_windows(
    tokens: Tensor, context: int, stride: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a text into windows for a model that reads `context` tokens at a time.

    The first window starts at the beginning of the text, and all of its tokens are targets. Each further
    window ends `stride` tokens after the one before it (the last one ends with the text), and only its new
    tokens are targets. So every token but the first is a target exactly once, and is predicted from more
    than `context - stride` tokens or from all tokens before it.

    Args:
        tokens: (n,) int64, n > 1; the first token is not predicted.
        context: number of tokens in a window, at least 1; a shorter text is one window.
        stride: number of new tokens in a window, 1 to `context`.
        batch_size: number of windows in a batch, at least 1.

    Yields:
        Inputs and targets, (windows, min(context, n - 1)) int64 each; ignored targets are -1.

    Raises:
        ZooError: A setting is out of range.
    """
    check_windows(context, stride, batch_size)
    count = len(tokens) - 1
    length = min(context, count)
    ends = torch.arange(length, count + stride, stride).clamp(max=count)
    counted = torch.cat((torch.zeros(1, dtype=torch.int64), ends[:-1]))
    windows = tokens.unfold(0, length + 1, 1)
    batches = (torch.split(part, batch_size) for part in (ends, counted))
    for end, before in zip(*batches, strict=True):
        rows = windows[end - length]
        number = (end - length)[:, None] + torch.arange(length)
        yield rows[:, :-1], rows[:, 1:].masked_fill(number < before[:, None], IGNORE_INDEX)


def check_windows(context: int, stride: int, batch_size: int) -> None:
    """Check the settings of `sliding_windows`, as described there."""
    rules = [
        (1 <= context < 2**31, f"context is {context}; expected 1 or more, and less than 2^31"),
        (1 <= stride <= context, f"stride is {stride}; expected 1 to {context}, the context"),
        (1 <= batch_size < 2**31, f"batch_size is {batch_size}; expected 1 or more, and less than 2^31"),
    ]
    for holds, problem in rules:
        if not holds:
            raise ZooError(f"eval: {problem}")
