"""The rotation of pairs of entries (RoPE) by zoo's C++ kernel on a CPU, or in plain PyTorch.

The halves of a small head are shorter than the vectors of a processor; there inductor rotates one entry after
the other.
"""

from __future__ import annotations

from ctypes import c_bool, c_int

import torch
from torch import Tensor

from zoo.kernels import native
from zoo.kernels.operator import operator
from zoo.kernels.support import Context, differentiable


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + r/2}) by the angle of its position, at least in float32.

    Args:
        x: (batch, time, heads, r), r even.
        cos: cosines (..., time, r / 2), float32; ... is nothing, 1 or the batch. No gradient flows into them.
        sin: signed sines (..., time, 2, r / 2), float32: minus the sines for the first entries of the pairs,
            the sines for the second.

    Returns:
        The same shape and dtype.
    """
    if x.device.type != "cpu" or x.dtype not in native.SUFFIXES:
        return plain_rotation(x, cos, sin)
    y: Tensor = differentiable(_Rotation, x, cos, sin, False)
    return y


class _Rotation(torch.autograd.Function):
    """The autograd function of the kernel; the gradient of a rotation is the rotation back."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.back = back
        return _rotation(x, cos, sin, back)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        return differentiable(_Rotation, grad, *ctx.saved_tensors, not ctx.back), None, None, None


@operator("rotation", lambda x, *_: x.new_empty(x.shape), "cpu")
def _rotation(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """The pairs of x, (batch, time, heads, r), rotated or, where `back` says so, rotated back."""
    kernels = native.load_kernels()
    if kernels is None:
        return plain_rotation(x, cos, sin.flip(-2) if back else sin)
    x = x if x.stride(-1) == 1 else x.contiguous()
    cos, sin, y = cos.contiguous(), sin.contiguous(), x.new_empty(x.shape)
    getattr(kernels, f"rotation_{native.SUFFIXES[x.dtype]}")(
        *(native.pointer(t) for t in (x, cos, sin, y)),
        native.integers(*x.shape),
        native.integers(*x.stride()[:3]),
        c_bool(cos.shape[:-2].numel() > 1),
        c_bool(back),
        c_int(torch.get_num_threads()),
    )
    return y


def plain_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate_pairs` in PyTorch, in float64 for float64 entries.

    The result is computed as the pairs times their cosines plus the exchanged pairs times their signed sines.
    Of a concatenation of the two rotated halves inductor would make a separate kernel.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.unsqueeze(-2).unsqueeze(-2).to(exact), sin.unsqueeze(-3).to(exact)
    pairs = torch.unflatten(x.to(exact), -1, (2, -1))
    return (pairs * cos + pairs.flip(-2) * sin).flatten(-2).to(x.dtype)
