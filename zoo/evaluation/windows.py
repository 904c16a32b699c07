"""A text as windows that overlap, so that every token is predicted once and from enough before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.nn.loss import IGNORED
from zoo.utils.errors import ZooError


def sliding_windows(
    tokens: Tensor, context: int, stride: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a text for a model that sees `context` tokens at a time.

    The first window begins with the text and counts in full. Each of the others ends `stride` tokens
    after the one before it (the last one with the text) and counts only what is new, so that every
    token but the first is a target exactly once, predicted from more than `context - stride` tokens or
    from all that there are before it.

    Args:
        tokens: (n,) int64, n > 1; the first one is only read.
        context: tokens of a window, at least 1; a shorter text is one window.
        stride: new tokens of a window, 1 to `context`.
        batch_size: windows of a batch, at least 1.

    Yields:
        Inputs and targets, (windows, min(context, n - 1)) int64 each; targets that do not count are -1.

    Raises:
        ZooError: a setting out of range.
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
        yield rows[:, :-1], rows[:, 1:].masked_fill(number < before[:, None], IGNORED)


def check_windows(context: int, stride: int, batch_size: int) -> None:
    """Refuse a setting of `sliding_windows` that is out of range."""
    rules = [
        (context >= 1, f"context is {context}; expected at least 1"),
        (1 <= stride <= context, f"stride is {stride}; expected 1 to {context}, the context"),
        (batch_size >= 1, f"batch_size is {batch_size}; expected at least 1"),
    ]
    for holds, problem in rules:
        if not holds:
            raise ZooError(f"eval: {problem}")
