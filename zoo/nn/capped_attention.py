"""Attention with a soft cap of the scores."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor

from zoo.nn.loss import capped
from zoo.utils.exact import exact, without_autocast


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
    grouped = exact(rearrange(q, "b t (g n) h -> b g n t h", g=k.shape[2])) * scale
    with without_autocast(q.device):  # autocast would round the scores
        scores = capped(grouped @ exact(rearrange(k, "b s g h -> b g 1 h s")), cap)
        probabilities = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
        y = probabilities.to(v.dtype) @ rearrange(v, "b s g h -> b g 1 s h")
    out: Tensor = rearrange(y, "b g n t h -> b t (g n) h").to(q.dtype)
    return out
