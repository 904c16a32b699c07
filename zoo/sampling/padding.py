"""Prompts of different lengths in one batch, padded on the left so that all end at the same position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.utils.errors import DataError


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Make a batch of prompts for `generate`.

    Args:
        prompts: token ids; no prompt may be empty.

    Returns:
        The tokens (batch, time) int64, padded on the left, and the mask (batch, time) bool, which is False
        for padding.

    Raises:
        DataError: There are no prompts, or one of them is empty.
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
