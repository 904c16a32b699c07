"""Where in its text a token stands."""

from __future__ import annotations

import torch
from torch import Tensor


def positions(start: int, time: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """Count from the first token of each text; padding in front of it stands at 0 and is never seen.

    Args:
        start: number of tokens before, padding included.
        time: number of tokens.
        device: where the result lives.
        padding: (batch,) int64, tokens in front of each text; None: none.

    Returns:
        int64, (time,) or, with padding, (batch, time).
    """
    counted = torch.arange(start, start + time, device=device)
    return counted if padding is None else (counted - padding[:, None]).clamp(min=0)
