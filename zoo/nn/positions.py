"""Where in its text a token stands."""

from __future__ import annotations

import torch
from torch import Tensor

CachePosition = int | Tensor
"""Number of tokens before; a 0-dim int64 tensor where one compiled step serves all of them."""


def positions(start: CachePosition, time: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """Count from the first token of each text; padding in front of it stands at 0 and is never seen.

    Args:
        start: number of tokens before, padding included.
        time: number of tokens.
        device: where the result lives.
        padding: (batch,) int64, tokens in front of each text; None: none.

    Returns:
        int64, (time,) or, with padding, (batch, time).
    """
    counted = torch.arange(time, device=device) + start
    return counted if padding is None else (counted - padding[:, None]).clamp(min=0)


def visible(start: CachePosition, time: int, keys: int, device: torch.device) -> Tensor:
    """Which of the keys 0, 1, ... the queries at `start`, start + 1, ... see: all up to their own.

    Returns:
        (time, keys) bool.
    """
    return torch.arange(keys, device=device) <= positions(start, time, device)[:, None]
