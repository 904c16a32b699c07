"""x W^T on whatever multiplies matrices fastest.

In float32 on a CPU torch asks MKL, which on processors of other makers leaves a tenth and more of
their speed unused; oneDNN, which comes with torch as well and already serves bfloat16, does not.
Both compute in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]

ROWS = 64
"""Below so many rows there is little to gain, and nothing is trained."""

LOOPS = 2
"""Rows up to which a loop over the matrix for each of them is as fast as a product."""


def linear(x: Tensor, weight: Tensor, factor: Tensor | None = None) -> Tensor:
    """x W^T, like `torch.nn.functional.linear`, times a factor if there is one.

    Args:
        x: (..., in).
        weight: (out, in).
        factor: (1,).

    Returns:
        (..., out).
    """
    if not _suits_onednn(x, weight):
        return F.linear(x, weight if factor is None else weight * factor)  # differentiates itself
    rows = x.reshape(-1, x.shape[-1])
    given = (rows, weight) if factor is None else (rows, weight, factor)
    y: Tensor = (_Linear if factor is None else _GatedLinear).apply(*given)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], len(weight))


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T without a gradient, for functions that write their own: (n, in), (out, in) -> (n, out)."""
    y: Tensor = _onednn(x, weight) if _suits_onednn(x, weight) else F.linear(x, weight)
    return y


class PreparedMatrix:
    """A matrix as it is best multiplied by when it does not change: y = x W^T without a gradient.

    In float32 on a CPU torch's product reads the matrix at a third of the memory's speed. Few rows are
    served by loops that inductor writes, more of them by a copy in oneDNN's layout.
    """

    def __init__(self, weight: Tensor, rows: int) -> None:
        """Lay it out.

        Args:
            weight: (out, in).
            rows: of the inputs it is going to multiply; those of others are as exact, but no faster.
        """
        self.onednn = _onednn_serves(weight)
        self.loops = self.onednn and rows <= LOOPS
        if self.onednn and not self.loops:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if self.loops and torch.compiler.is_compiling():
            return (x.unsqueeze(-2) * self.weight).sum(-1)
        y: Tensor = (torch.ops.zoo.steady_linear if self.onednn else F.linear)(x, self.weight)
        return y


def _steady_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Opaque to inductor like `_onednn`, and lighter to call, which counts with every token."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return y


_LIBRARY = library.Library("zoo", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("steady_linear(Tensor x, Tensor weight) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("steady_linear", _steady_linear, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
library.register_fake("zoo::steady_linear", lambda x, weight: x.new_empty(*x.shape[:-1], len(weight)))


def _onednn_serves(weight: Tensor) -> bool:
    """Float32 on a CPU, and no autocast that would want another dtype."""
    return (
        ONEDNN
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Many rows as well.

    A slice of a matrix is copied entry by entry by oneDNN, a thousand times slower: torch serves it.
    """
    return (
        _onednn_serves(weight)
        and x.dtype == weight.dtype
        and x.numel() >= ROWS * x.shape[-1]
        and (weight.is_contiguous() or weight.mT.is_contiguous())
    )


class _Linear(torch.autograd.Function):
    """(n, in), (out, in) -> (n, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = _onednn(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        # The sum over the rows is where MKL is no slower, and it needs no transposed copies.
        return _onednn(grad, weight.mT) if needs_x else None, grad.mT @ x if needs_weight else None


@library.custom_op("zoo::onednn_linear", mutates_args=())
def _onednn(x: Tensor, weight: Tensor) -> Tensor:
    """(n, in), (out, in) -> (n, out); opaque, because inductor takes oneDNN's weights for constants."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return y


@_onednn.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class _GatedLinear(torch.autograd.Function):
    """(n, in), (out, in), (1,) -> (n, out): x (factor W)^T.

    The factor's gradient is taken where that of the product has just been computed and is still in the
    processor's cache; left to the compiler it costs a pass over all weights.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factor: Tensor) -> Tensor:
        virtual = weight * factor
        ctx.save_for_backward(x, weight, virtual, factor)
        y: Tensor = _onednn(x, virtual)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, virtual, factor = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad
        dx = _onednn(grad, virtual.mT) if needs_x else None
        return dx, *(_gated_gradient(grad, x, weight, factor) if any(needs) else (None, None))


@library.custom_op("zoo::gated_gradient", mutates_args=())
def _gated_gradient(grad: Tensor, x: Tensor, weight: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """(n, out), (n, in), (out, in), (1,) -> the gradients of the last two."""
    change = grad.mT @ x
    slope = torch.dot(change.view(-1), weight.reshape(-1)).view(1)
    return change.mul_(factor), slope


@_gated_gradient.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weight), torch.empty_like(factor)
