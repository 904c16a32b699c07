"""Causal attention in blocks of queries, for short sequences on a CPU.

torch's fused CPU kernel reaches a third of the speed of its matrix products. Here every block of queries is
multiplied, in batched matrix products, only with the keys from the beginning of its window up to the block's
end, so that few scores are computed and masked. The probabilities are kept for the backward pass, which is
explicit. No private operator of torch is used; the tests compare with `scaled_dot_product_attention`, which
computes the attention of all longer sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.kernels.operator import operator
from zoo.kernels.support import Context, differentiable
from zoo.utils.exact import without_autocast

BLOCK = 128
"""Number of queries per block. A block computes all scores with its own keys, half of which are masked."""

LONGEST = 512
"""Largest length of a sequence; up to it the kept probabilities are a small part of a layer's activations."""


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute softmax(scale q k^T, causal) v, with scores and softmax in float32.

    Args:
        q: (batch, time, heads, h).
        k: the same shape.
        v: the same shape.
        scale: the factor of the scores.
        window: how many keys a query sees, its own included; None: all up to its own.
        mask: (batch, time, time) bool, which of these keys each query sees, including its own; None: all.

    Returns:
        (batch, time, heads, h), in the dtype of `q`.
    """
    batch, time, heads, size = q.shape
    folded = [t.transpose(1, 2).reshape(batch * heads, time, size) for t in (q, k, v)]
    with without_autocast(q.device):  # autocast would round the scores
        y: Tensor = differentiable(_Blockwise, *folded, scale, window or time, mask)
    return y.view(batch, heads, time, size).transpose(1, 2)


class _Blockwise(torch.autograd.Function):
    """The autograd function of `blockwise_attention`, on tensors (batch * heads, time, h)."""

    @staticmethod
    def forward(
        ctx: Context, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, seen: Tensor | None
    ) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        queries, keys = q.to(exact) * scale, k.to(exact)
        time = q.shape[1]
        mask = _causal_mask(queries, time, window)
        outputs, probabilities = [], []
        for first, start, end in _blocks(time, window):
            scores = queries[:, start:end] @ keys[:, first:end].mT + mask[start:end, first:end]
            if seen is not None:
                by_text = torch.unflatten(scores, 0, (len(seen), len(scores) // max(1, len(seen))))
                by_text.masked_fill_(~seen[:, None, start:end, first:end], -torch.inf)
            p = torch.softmax(scores, dim=-1).to(q.dtype)
            outputs.append(p @ v[:, first:end])
            probabilities.append(p)
        y = torch.cat(outputs, 1)
        ctx.save_for_backward(q, k, v, y, *probabilities)
        ctx.scale, ctx.window = scale, window
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y, *probabilities = ctx.saved_tensors
        exact = torch.promote_types(q.dtype, torch.float32)
        # The gradient of the scores is P (dP - rowsum(P dP)), and the row sums of P dP are those of y dy.
        sums = (grad.to(exact) * y.to(exact)).sum(-1, keepdim=True)
        q_grad = []
        k_grad, v_grad = (torch.zeros_like(t, dtype=exact) for t in (k, v))
        for (first, start, end), p in zip(_blocks(q.shape[1], ctx.window), probabilities, strict=True):
            g = grad[:, start:end]
            p_grad = (g @ v[:, first:end].mT).to(exact)
            s_grad = (p.to(exact) * (p_grad - sums[:, start:end]) * ctx.scale).to(q.dtype)
            q_grad.append(s_grad @ k[:, first:end])
            k_grad[:, first:end] += s_grad.mT @ q[:, start:end]
            v_grad[:, first:end] += p.mT @ g
        return torch.cat(q_grad, 1), k_grad.to(k.dtype), v_grad.to(v.dtype), None, None, None


@operator("causal_mask", lambda like, time, window: like.new_empty(time, time))
def _causal_mask(like: Tensor, time: int, window: int) -> Tensor:
    """Return (time, time): -inf where the key comes after the query or before its window, else 0.

    The operator is opaque to inductor, which would otherwise compare the positions for every score.
    """
    hidden = torch.full((time, time), -torch.inf, dtype=like.dtype, device=like.device)
    return hidden.triu(1) + hidden.tril(-window)


def _blocks(time: int, window: int) -> list[tuple[int, int, int]]:
    """Return, for each block of queries, the first key that it sees, its start and its end."""
    starts = range(0, time, BLOCK)
    return [(max(0, start - window + 1), start, min(start + BLOCK, time)) for start in starts]
