"""Positions of tokens, and which of them a query sees."""

from __future__ import annotations

import torch
from torch import Tensor

CachePosition = int | Tensor
"""Number of tokens in a cache; a 0-dim int64 tensor if one compiled step serves every number."""


def positions(start: CachePosition, time: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """Positions of tokens, counted from the first token of each text; padding has position 0.

    Args:
        start: number of tokens before the first one, padding included.
        time: number of tokens.
        device: where the result lives.
        padding: (batch,) int64, number of padding tokens in front of each text; None: there is no padding.

    Returns:
        int64, (time,) or, with padding, (batch, time).
    """
    counted = torch.arange(time, device=device) + start
    return counted if padding is None else (counted - padding[:, None]).clamp(min=0)


def visible(start: CachePosition, time: int, keys: int, device: torch.device) -> Tensor:
    """Which of the keys 0, 1, ... the queries at `start`, start + 1, ... see: all keys up to their own.

    Returns:
        (time, keys) bool.
    """
    return torch.arange(keys, device=device) <= positions(start, time, device)[:, None]
