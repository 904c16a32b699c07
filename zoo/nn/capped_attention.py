"""Attention with a soft cap of the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.nn.loss import capped


def capped_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, cap: float, seen: Tensor) -> Tensor:
    """Softmax attention with scores <- cap tanh(scores / cap). All scores are in memory at once, in float32.

    Args:
        q: (batch, time, heads, h).
        k: (batch, keys, kv heads, h).
        v: the same shape as `k`.
        scale: factor of the scores, in front of the cap.
        cap: the bound of the scores.
        seen: (1 or batch, time, keys) bool, whether a query sees a key.

    Returns:
        (batch, time, heads, h), in the dtype of `q`.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    # (batch, kv heads, query heads of one of them or 1, time, h)
    grouped = torch.unflatten(q, 2, (k.shape[2], -1)).movedim(1, 3).to(exact) * scale
    keys, values = (t.transpose(1, 2).unsqueeze(2) for t in (k, v))
    with torch.autocast(q.device.type, enabled=False):  # autocast would round the scores
        scores = capped(grouped @ keys.mT.to(exact), cap)
        probabilities = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
        y = probabilities.to(v.dtype) @ values
    return y.movedim(3, 1).flatten(2, 3).to(q.dtype)
