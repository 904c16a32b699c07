"""Prompts of different lengths in one batch: padding in front, so that all go on at the same place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.utils.errors import DataError


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Put prompts into one batch for `generate`.

    Args:
        prompts: token ids, at least one in each.

    Returns:
        The tokens (batch, time) int64 with padding in front, and the mask (batch, time) bool, which is
        False there.

    Raises:
        DataError: no prompt, or an empty one.
    """
    if not prompts:
        raise DataError("prompts: there are none")
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise DataError(f"prompts: number {i} is empty; expected at least one token")
        tokens[i, -len(prompt) :] = torch.tensor(prompt)
        mask[i, -len(prompt) :] = True
    return tokens, mask


def padding_of(mask: Tensor, prompt: Tensor) -> Tensor | None:
    """Count the padding in front of each prompt.

    Args:
        mask: (batch, time) bool, False for padding.
        prompt: (batch, time).

    Returns:
        (batch,) int64, or None if there is no padding anywhere.

    Raises:
        DataError: a mask that is no such thing, or with padding anywhere but in front of a text.
    """
    if mask.shape != prompt.shape or mask.dtype != torch.bool:
        raise DataError(
            f"mask: expected bool {tuple(prompt.shape)} like the prompt, got {mask.dtype} {tuple(mask.shape)}"
        )
    wrong = ~mask[:, -1] | (mask[:, :-1] & ~mask[:, 1:]).any(1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(f"mask: row {row} has padding inside or behind its text; expected it in front only")
    return None if mask.all() else (~mask).sum(1)
