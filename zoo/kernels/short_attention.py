"""Causal attention of short sequences on a CPU: zoo's C++ kernel, or blocks of matrix products.

The kernel computes in float32 whatever the dtype of its inputs. It is faster than matrix products where heads
are small; large heads of bfloat16 are left to matrix products on processors that have units for them (AMX).
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from zoo.kernels import native
from zoo.kernels.blockwise import LONGEST, blockwise_attention
from zoo.kernels.causal import causal_mask
from zoo.kernels.operator import operator
from zoo.kernels.support import Context, differentiable
from zoo.utils.device import processor_field

__all__ = ["ATTENTION", "LONGEST", "short_attention"]

MATRIX_UNITS = "amx_bf16" in (processor_field("flags") or "")
"""Whether the processor multiplies matrices of bfloat16 in units of their own."""
SMALL_HEAD = 32
"""Largest head of bfloat16 that the kernel takes where there are such units (our choice, not measured)."""
LARGE_HEAD = 64
"""Largest head that the kernel takes; for larger ones it gains nothing over matrix products."""


def short_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute softmax(scale q k^T, causal) v, with scores and softmax in float32.

    Args:
        q: (batch, time, heads, h), time up to `LONGEST`, on a CPU.
        k: the same shape.
        v: the same shape.
        scale: the factor of the scores.
        window: how many keys a query sees, its own included; None: all up to its own.
        mask: (batch, time, time) bool, which of these keys each query sees, including its own; None: all.

    Returns:
        (batch, time, heads, h), in the dtype of `q`.
    """
    if not _suits(q, k, v):
        return blockwise_attention(q, k, v, scale, window, mask)
    y: Tensor = differentiable(_Attention, q, k, v, scale, window or q.shape[1], mask)
    return y


def _suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    largest = SMALL_HEAD if MATRIX_UNITS and q.dtype == torch.bfloat16 else LARGE_HEAD
    return q.dtype in native.SUFFIXES and k.dtype == v.dtype == q.dtype and q.shape[-1] <= largest


class _Attention(torch.autograd.Function):
    """The autograd function of the kernel, on tensors (batch, time, heads, h)."""

    @staticmethod
    def forward(
        ctx: Context, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, mask: Tensor | None
    ) -> Tensor:
        y: Tensor
        y, lse = _attention(q, k, v, mask, scale, window)
        ctx.save_for_backward(q, k, v, mask, lse)
        ctx.scale, ctx.window = scale, window
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_attention_backward(grad, *ctx.saved_tensors, ctx.scale, ctx.window), None, None, None


@operator("attention", lambda q, *_: _outputs(q), "cpu")
def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, window: int
) -> tuple[Tensor, Tensor]:
    """The output (batch, time, heads, h), and the logsumexp of the scores (batch, heads, time), float32."""
    kernels = native.load_kernels()
    if kernels is None:
        return plain_attention(q, k, v, mask, scale, window)
    q, k, v = (_rows(t) for t in (q, k, v))
    mask = None if mask is None else mask.contiguous()
    y, lse = _outputs(q)
    getattr(kernels, f"attention_{native.SUFFIXES[q.dtype]}")(
        *(native.pointer(t) for t in (q, k, v, mask, y, lse)), *_described((q, k, v), scale, window)
    )
    return y, lse


@operator("attention_backward", lambda grad, q, *_: _gradients(q), "cpu")
def _attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    lse: Tensor,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    kernels = native.load_kernels()
    if kernels is None:
        return plain_gradients(grad, q, k, v, mask, scale, window)
    grad, q, k, v = (_rows(t) for t in (grad, q, k, v))
    mask = None if mask is None else mask.contiguous()
    grads = _gradients(q)
    getattr(kernels, f"attention_backward_{native.SUFFIXES[q.dtype]}")(
        *(native.pointer(t) for t in (grad, q, k, v, mask, lse, *grads)),
        *_described((grad, q, k, v), scale, window),
    )
    return grads


ATTENTION: object = torch.ops.zoo.attention.default
"""The operator of the forward pass."""


@register_flop_formula(torch.ops.zoo.attention)
def _operations(q: tuple[int, ...], *_: object, **__: object) -> int:
    """Two products of all queries and keys, as torch counts them."""
    batch, time, heads, size = q
    return 4 * batch * heads * time**2 * size


@register_flop_formula(torch.ops.zoo.attention_backward)
def _operations_backward(grad: tuple[int, ...], *_: object, **__: object) -> int:
    """Four products; that the scores are computed again is not counted."""
    return 2 * _operations(grad)


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    batch, time, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(batch, heads, time, dtype=torch.float32)


def _gradients(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _described(tensors: tuple[Tensor, ...], scale: float, window: int) -> tuple[object, ...]:
    """Sizes, strides, scale, window and threads, as the kernel takes them."""
    return (
        native.integers(*tensors[0].shape),
        native.integers(*(stride for tensor in tensors for stride in tensor.stride()[:3])),
        c_float(scale),
        c_int64(window),
        c_int(torch.get_num_threads()),
    )


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, window: int
) -> tuple[Tensor, Tensor]:
    """The same as the kernel in PyTorch, from all scores at once; in float64 for float64 inputs."""
    scores, _, _, values = _scores(q, k, v, mask, scale, window)
    lse = scores.logsumexp(-1)
    y = (scores - lse.unsqueeze(-1)).exp() @ values
    return y.transpose(1, 2).contiguous().to(q.dtype), lse


def plain_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `plain_attention`."""
    scores, queries, keys, values = _scores(q, k, v, mask, scale, window)
    p, grads = scores.softmax(-1), grad.transpose(1, 2).to(scores.dtype)
    p_grad = grads @ values.mT
    s_grad = p * (p_grad - (p * p_grad).sum(-1, keepdim=True)) * scale
    found = (s_grad @ keys, s_grad.mT @ queries, p.mT @ grads)
    of_q, of_k, of_v = (t.transpose(1, 2).contiguous().to(q.dtype) for t in found)
    return of_q, of_k, of_v


def _scores(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, window: int
) -> tuple[Tensor, ...]:
    """(batch, heads, time, time) scores, -inf where a key is not seen; q, k, v (batch, heads, time, h)."""
    exact = torch.promote_types(q.dtype, torch.float32)
    queries, keys, values = (t.transpose(1, 2).to(exact) for t in (q, k, v))
    seen = causal_mask(q.shape[1], window, q.device)
    hidden = ~seen if mask is None else ~(seen & mask).unsqueeze(1)
    return (queries @ keys.mT * scale).masked_fill(hidden, -torch.inf), queries, keys, values
