"""x W^T by the fastest available matrix product.

For float32 on a CPU torch calls Intel's MKL, which is slower than oneDNN by a tenth or more on processors of
other vendors. oneDNN also comes with torch, which uses it for bfloat16; on Intel's processors a training step
takes a tenth longer with it than with MKL. Both compute in float32. If oneDNN's operators are missing, all
functions use `torch.nn.functional.linear`.

A processor without instructions for bfloat16 takes four times as long for torch's products of bfloat16 as for
those of float32. There they are computed in float32 and rounded to bfloat16, which is what such instructions
do, but for the order of the sums: the product of two numbers of bfloat16 is exact in float32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from zoo.kernels.operator import operator
from zoo.kernels.support import Context, differentiable, has_operator
from zoo.utils.device import processor_field

ONEDNN: bool = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch does not annotate it
    and has_operator("mkldnn", "_linear_pointwise", ("X", "W", "B", "attr", "scalars", "algorithm"))
    and has_operator("mkldnn", "_reorder_linear_weight", ("self", "batch_size"))
)
"""Whether oneDNN's matrix product can be called."""


def training_product(vendor: str | None) -> Literal["onednn", "mkl"]:
    """The library for float32 products in training, by the vendor of the processor (its `vendor_id`)."""
    return "onednn" if ONEDNN and vendor != "GenuineIntel" else "mkl"


PRODUCT = training_product(processor_field("vendor_id"))
"""The library for float32 products in training on this machine, recorded in environment.json."""


def multiplies_bfloat16(flags: str | None) -> bool:
    """Whether a processor has instructions for products of bfloat16.

    Args:
        flags: what it can do, the field `flags` or, of an ARM processor, `Features`; None: unknown, which is
            taken as a yes.
    """
    return flags is None or not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())


BFLOAT16 = multiplies_bfloat16(processor_field("flags") or processor_field("Features"))
"""Whether this machine's processor multiplies bfloat16 by itself, recorded in environment.json."""

ROWS = 64
"""Smallest number of rows for oneDNN, and for products of bfloat16 in float32; for fewer, which do not occur
in training, there is little to gain."""

PRODUCTS = 1 << 22
"""Smallest number of multiplications for oneDNN: what a call of it takes before it multiplies, some 25 us, is
as long as a smaller product takes."""

LOOPS = 2
"""Largest number of rows for which a loop over the matrix for each row is as fast as a matrix product."""


def linear(x: Tensor, weight: Tensor, factor: Tensor | None = None) -> Tensor:
    """Compute x (factor W)^T, differentiably.

    Args:
        x: (..., in).
        weight: W, (out, in).
        factor: (1,), which may be float32 beside a bfloat16 matrix, or None for 1.

    Returns:
        (..., out).
    """
    if not _suits_onednn(x, weight):
        weight = weight if factor is None else (weight * factor).to(weight.dtype)
        if not _is_rounded(x, weight):
            return F.linear(x, weight)
        rounded: Tensor = differentiable(_RoundedLinear, x.reshape(-1, x.shape[-1]), weight)
        return rounded.view(*x.shape[:-1], len(weight))
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = (
        differentiable(_Linear, rows, weight)
        if factor is None
        else differentiable(_GatedLinear, rows, weight, factor)
    )
    return y.view(*x.shape[:-1], len(weight))


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Compute x W^T without a gradient, for functions that define their own backward pass.

    Args:
        x: (n, in).
        weight: W, (out, in).

    Returns:
        (n, out).
    """
    if _suits_onednn(x, weight):
        y: Tensor = _onednn(x, weight)
        return y
    return product(x, weight.mT) if _is_rounded(x, weight) else F.linear(x, weight)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Compute a b without a gradient: (m, k), (k, n) -> (m, n)."""
    return rounded_product(a, b) if lacks_instructions(a) and a.dtype == b.dtype else a @ b


def lacks_instructions(x: Tensor) -> bool:
    """Whether a tensor is of bfloat16 on a processor without instructions for products of such tensors."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and not BFLOAT16


class PreparedMatrix:
    """A constant matrix W, stored in the layout that is fastest for x W^T; it has no gradient.

    On a CPU torch's product reads the matrix at a third of the memory bandwidth in float32, at half of it in
    bfloat16. Inputs of few rows are multiplied by loops that inductor generates if the product is compiled,
    and by a copy of W in oneDNN's layout otherwise, as are inputs of more rows.
    """

    def __init__(self, weight: Tensor, rows: int, compiled: bool = False) -> None:
        """Store the matrix.

        Args:
            weight: W, (out, in).
            rows: the expected number of rows of inputs. For other numbers of rows the results are as exact,
                but not faster.
            compiled: whether the product will be compiled.
        """
        bf16 = _onednn_serves(weight, torch.bfloat16) and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self.onednn: bool = bf16 or _onednn_serves(weight)
        self.loops = self.onednn and compiled and rows <= LOOPS
        # oneDNN reads a float32 matrix in torch's own layout as fast for a single row, without the copy.
        as_it_is = self.loops or (rows == 1 and weight.dtype == torch.float32)
        if self.onednn and not as_it_is:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x W^T: (..., in) -> (..., out)."""
        if self.loops and torch.compiler.is_compiling():
            return (x.unsqueeze(-2) * self.weight).sum(-1)
        y: Tensor = (_onednn if self.onednn else F.linear)(x, self.weight)
        return y


def _onednn_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute (..., in), (out, in) -> (..., out) by oneDNN, within an operator."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return y


@operator("onednn_linear", lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[0]))
def _onednn(x: Tensor, weight: Tensor) -> Tensor:
    """Compute (..., in), (out, in) -> (..., out); inductor would treat oneDNN's weights as constants."""
    return _onednn_product(x, weight)


ONEDNN_LINEAR: object = torch.ops.zoo.onednn_linear.default
"""The operator of oneDNN's product."""


def _onednn_serves(weight: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether the weight is of a dtype on a CPU and no autocast asks for another one."""
    return (
        ONEDNN
        and weight.device.type == "cpu"
        and weight.dtype == dtype
        and not torch.is_autocast_enabled("cpu")
    )


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN computes x W^T faster than torch does.

    oneDNN copies slices of a matrix entry by entry, a thousand times slower; therefore torch multiplies
    slices.
    """
    return (
        PRODUCT == "onednn"
        and _onednn_serves(weight)
        and x.dtype == weight.dtype
        and x.numel() >= ROWS * x.shape[-1]
        and x.numel() * weight.shape[0] >= PRODUCTS
        and (weight.is_contiguous() or weight.mT.is_contiguous())
    )


class _Linear(torch.autograd.Function):
    """x (n, in), W (out, in) -> x W^T (n, out)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = _onednn(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        # MKL is not slower for the sum over the rows, and it needs no transposed copies.
        return _onednn(grad, weight.mT) if needs_x else None, grad.mT @ x if needs_weight else None


def _is_rounded(x: Tensor, weight: Tensor) -> bool:
    """Whether x W^T is a product of bfloat16, of many rows, for which the processor has no instructions."""
    if BFLOAT16 or x.device.type != "cpu" or x.numel() < ROWS * x.shape[-1]:
        return False
    dtypes = {x.dtype, weight.dtype}
    if torch.is_autocast_enabled("cpu"):  # which does not apply to float64
        return torch.float64 not in dtypes and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return dtypes == {torch.bfloat16}


class _RoundedLinear(torch.autograd.Function):
    """x (n, in), W (out, in) -> x W^T (n, out), bfloat16."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
        rounded = x.bfloat16()
        ctx.save_for_backward(rounded, weight)
        ctx.dtype = x.dtype
        y: Tensor = rounded_product(rounded, weight.mT)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        if needs_x and needs_weight:
            x_grad, weight_grad = rounded_gradients(grad, x, weight)
            return x_grad.to(ctx.dtype), weight_grad.to(weight.dtype)
        return (
            rounded_product(grad, weight).to(ctx.dtype) if needs_x else None,
            rounded_product(grad.mT, x).to(weight.dtype) if needs_weight else None,
        )


@operator("rounded_product", lambda a, b: a.new_empty(a.shape[0], b.shape[1], dtype=torch.bfloat16))
def rounded_product(a: Tensor, b: Tensor) -> Tensor:
    """(m, k), (k, n) -> a b, (m, n), of factors rounded to bfloat16, computed in float32 and rounded.

    Opaque to inductor, which would leave out the roundings.
    """
    with torch.autocast("cpu", enabled=False):
        return _narrow_product(_widened(a), _widened(b))


def _widened(factor: Tensor) -> Tensor:
    """A factor rounded to bfloat16, in float32."""
    return factor.bfloat16().float()


def _narrow_product(a: Tensor, b: Tensor) -> Tensor:
    """(m, k), (k, n) -> a b, (m, n), bfloat16, of factors in float32, within an operator."""
    # oneDNN would copy a transposed `a`, that of the gradient of a weight; MKL takes it as it is.
    if a.is_contiguous() and _suits_onednn(a, b.mT):
        return _onednn_product(a, b.mT).bfloat16()
    return (a @ b).bfloat16()


@register_flop_formula(torch.ops.zoo.rounded_product)
def _rounded_product_flops(a: tuple[int, ...], b: tuple[int, ...], **_: object) -> int:
    """Two operations for a product and its sum."""
    return 2 * a[0] * a[1] * b[1]


@operator(
    "rounded_gradients",
    lambda grad, x, weight: (
        x.new_empty(x.shape, dtype=torch.bfloat16),
        weight.new_empty(weight.shape, dtype=torch.bfloat16),
    ),
)
def rounded_gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(n, out), (n, in), (out, in) -> grad W and grad^T x, each as `rounded_product` has it.

    The gradient, which is large behind a large vocabulary, becomes float32 once.
    """
    with torch.autocast("cpu", enabled=False):
        grad = _widened(grad)
        return _narrow_product(grad, _widened(weight)), _narrow_product(grad.mT, _widened(x))


@register_flop_formula(torch.ops.zoo.rounded_gradients)
def _rounded_gradients_flops(
    grad: tuple[int, ...], x: tuple[int, ...], weight: tuple[int, ...], **_: object
) -> int:
    """Those of two products."""
    return 2 * _rounded_product_flops(grad, weight)


ROUNDED_PRODUCT: object = torch.ops.zoo.rounded_product.default
"""The operator of products of bfloat16 that are computed in float32."""


class _GatedLinear(torch.autograd.Function):
    """x (n, in), W (out, in), factor (1,) -> x (factor W)^T (n, out).

    The gradient of the factor is computed while that of the product is still in the processor's cache; by the
    compiler, it would cost a pass over all weights.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, factor: Tensor) -> Tensor:
        virtual = weight * factor
        ctx.save_for_backward(x, weight, virtual, factor)
        y: Tensor = _onednn(x, virtual)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, virtual, factor = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad
        x_grad = _onednn(grad, virtual.mT) if needs_x else None
        return x_grad, *(_gated_gradients(grad, x, weight, factor) if any(needs) else (None, None))


@operator(
    "gated_gradients", lambda grad, x, weight, factor: (torch.empty_like(weight), torch.empty_like(factor))
)
def _gated_gradients(grad: Tensor, x: Tensor, weight: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """(n, out), (n, in), (out, in), (1,) -> the gradients of the weight and of the factor."""
    virtual_grad = grad.mT @ x
    factor_grad = torch.dot(virtual_grad.view(-1), weight.reshape(-1)).view(1)
    return virtual_grad.mul_(factor), factor_grad
