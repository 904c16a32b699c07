"""Prompts of different lengths in one batch, padded on the left so that all end at the same position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.utils.errors import DataError
from zoo.utils.printable import dtype_name

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def left_padded(prompts: Sequence[Sequence[int] | Tensor] | Tensor) -> tuple[Tensor, Tensor]:
    """Make a batch of prompts for `generate`.

    Args:
        prompts: token ids, each prompt a sequence or a tensor (time,); no prompt may be empty.

    Returns:
        The tokens (batch, time) int64, padded on the left, and the mask (batch, time) bool, which is False
        for padding.

    Raises:
        DataError: There are no prompts, or one of them is empty or not a row of whole numbers.
    """
    rows = [torch.as_tensor(prompt) for prompt in prompts]
    if not rows:
        raise DataError("prompts: there are none")
    for i, row in enumerate(rows):
        if row.shape == (0,):
            raise DataError(f"prompts: number {i} is empty; expected at least one token")
        if row.dim() != 1 or row.dtype not in INTEGERS:
            kind = f"{dtype_name(row.dtype)} {tuple(row.shape)}"
            raise DataError(f"prompts: number {i} is {kind}; expected token ids, (time,)")
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, -len(row) :] = row
        mask[i, -len(row) :] = True
    return tokens, mask
