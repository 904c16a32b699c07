"""The mask of causal attention without a cache."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(time: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys each query sees.

    Args:
        time: number of queries, and of keys.
        window: how many keys a query sees, its own included; None: all up to its own.
        device: where the result lives.

    Returns:
        (time, time) bool.
    """
    mask = torch.ones(time, time, dtype=torch.bool, device=device).tril()
    return mask if window is None else mask.triu(1 - window)
