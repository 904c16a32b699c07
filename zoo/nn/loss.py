"""Cross entropy of a language model head that never holds the logits of all tokens at once.

With a vocabulary of 32 000, the (tokens, vocabulary) logits are the largest tensor of a language model, and
the usual computation holds three tensors of that size. Here the tokens are processed in chunks, and the
gradient of a chunk is computed in the forward pass, while its logits are in memory; the backward pass only
multiplies it by the incoming gradient. The result is exact, because losses and gradients of chunks add up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.kernels.matmul import matmul, product
from zoo.kernels.softmax import IGNORE_INDEX as IGNORE_INDEX
from zoo.kernels.softmax import counted_index, has_kernel, softmax_gradient, softmax_gradient_
from zoo.kernels.support import Context
from zoo.utils.errors import DataError, ZooError
from zoo.utils.exact import exact, has_autocast, without_autocast

SMALL = 2**22
"""Logits up to this many entries (16 MiB in float32) are one chunk."""


class LossParts(NamedTuple):
    """A loss and its parts: means over the targets that are not ignored, 0-dim each.

    Attributes:
        total: `cross_entropy + z_loss`, which has a gradient.
        cross_entropy: mean cross entropy in nats per token, without a gradient.
        z_loss: coefficient * mean(logsumexp(logits)^2), without a gradient.
        accuracy: share of the targets that have the largest logit; None for language models.
        predicted: (n,) int64, the class with the largest logit; None for language models.
    """

    total: Tensor
    cross_entropy: Tensor
    z_loss: Tensor
    accuracy: Tensor | None = None
    predicted: Tensor | None = None


class _Sums(NamedTuple):
    """Sums over the tokens that are not ignored; gradients are None if they are not needed."""

    cross_entropy: Tensor
    squared_lse: Tensor
    hidden_grad: Tensor | None
    weight_grad: Tensor | None
    bias_grad: Tensor | None


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> LossParts:
    """Mean cross entropy of ``softmax(cap(scale * (hidden @ weight.T) + bias))``, with z-loss.

    The matrix products are computed in the dtype of autocast, the softmax and the sums over chunks in float32
    (float64 for float64 inputs). If every target is ignored, all parts are 0.

    Args:
        hidden: (n, d), floating point.
        weight: (V, d), floating point.
        targets: (n,) int64 in [0, V), or -1 for a token that is ignored.
        scale: factor of every logit, (V,) or (1,) (nGPT's s_z), or None.
        bias: added to every logit, (V,) (BERT's head), or None.
        z_loss: coefficient of mean(logsumexp^2), which keeps the logits from drifting.
        soft_cap: c of cap(z) = c tanh(z / c); None: cap(z) = z.
        chunk: number of tokens in a chunk; None: all of them if the logits are small, otherwise between an
            eighth and half of them.

    Returns:
        The parts; only `total` has a gradient, with respect to hidden, weight, scale and bias.

    Raises:
        ZooError: The shapes do not fit together, the targets are not int64, `chunk` is below 1, or
            `z_loss` below 0.
        DataError: On a CPU, a target is neither in [0, V) nor -1. Compiled graphs do not check it.
    """
    _check(hidden, weight, targets, scale, bias, chunk, z_loss)
    if scale is not None:
        weight = weight * scale.unsqueeze(-1)  # V x d products instead of n x V
    dtype = _matmul_dtype(hidden, weight)
    rows = chunk or _rows(len(hidden), len(weight))
    trained = [t for t in (hidden, weight, bias) if t is not None and t.requires_grad]
    if torch.is_grad_enabled() and trained:
        inputs = hidden, weight, bias, targets, z_loss, soft_cap, rows, dtype
        return LossParts(*_LinearCrossEntropy.apply(*inputs))  # type: ignore[no-untyped-call]  # torch's
    sums = _sums(hidden, weight, bias, targets, z_loss, soft_cap, rows, dtype, (False, False, False))
    return _parts(sums, _reciprocal_count(targets, sums.cross_entropy.dtype), z_loss)


def capped(logits: Tensor, soft_cap: float) -> Tensor:
    """c tanh(logits / c), in float32 at least."""
    return (exact(logits) / soft_cap).tanh() * soft_cap


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss, whose gradient is computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        z_loss: float,
        soft_cap: float | None,
        rows: int,
        dtype: torch.dtype,
    ) -> LossParts:
        sums = _sums(hidden, weight, bias, targets, z_loss, soft_cap, rows, dtype, ctx.needs_input_grad[:3])
        reciprocal = _reciprocal_count(targets, sums.cross_entropy.dtype)
        parts = _parts(sums, reciprocal, z_loss)
        ctx.save_for_backward(reciprocal, sums.hidden_grad, sums.weight_grad, sums.bias_grad)
        ctx.mark_non_differentiable(parts.cross_entropy, parts.z_loss)
        ctx.dtypes = hidden.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype
        return parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # Dividing by the count only here avoids underflow in half precision.
        reciprocal, *grads = ctx.saved_tensors
        factor = grad * reciprocal
        pairs = zip(grads, ctx.dtypes, strict=True)
        hidden, weight, bias = ((g * factor).to(dtype) if g is not None else None for g, dtype in pairs)
        return hidden, weight, bias, None, None, None, None, None


def _sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    z_loss: float,
    soft_cap: float | None,
    rows: int,
    dtype: torch.dtype,
    needs_grad: tuple[bool, bool, bool],
) -> _Sums:
    """Sum over the chunks: the losses and, where needed, the gradients of the undivided total."""
    hidden_needs_grad, weight_needs_grad, bias_needs_grad = needs_grad
    exact_dtype = torch.promote_types(dtype, torch.float32)
    cross_entropy = hidden.new_zeros((), dtype=exact_dtype)
    squared_lse = hidden.new_zeros((), dtype=exact_dtype)
    hidden_grads: list[Tensor] = []
    weight_grad: Tensor | None = None
    bias_grad = None if bias is None or not bias_needs_grad else torch.zeros_like(bias, dtype=exact_dtype)
    with without_autocast(hidden.device):
        matrix = weight.to(dtype)
        chunks = zip(torch.split(hidden.to(dtype), rows), torch.split(targets, rows), strict=True)
        for h, t in chunks:
            counted = (t != IGNORE_INDEX).to(exact_dtype)
            logits = matmul(h, matrix)
            grad: Tensor | None
            if any(needs_grad) and bias is None and soft_cap is None and has_kernel(logits):
                grad, lse, target_logits = softmax_gradient(logits, t, counted.new_full((), z_loss))
            else:
                grad, lse, target_logits = _logit_gradient(
                    logits.to(exact_dtype), t, bias, z_loss, soft_cap, any(needs_grad)
                )
            cross_entropy = cross_entropy + ((lse - target_logits) * counted).sum()
            squared_lse = squared_lse + (lse.square() * counted).sum()
            if grad is None:
                continue
            if bias_grad is not None:
                bias_grad += grad.sum(0)
            grad = grad.to(dtype)
            if hidden_needs_grad:
                hidden_grads.append(product(grad, matrix))
            if weight_needs_grad:
                share = product(grad.mT, h)
                weight_grad = share.to(exact_dtype) if weight_grad is None else weight_grad.add_(share)
    hidden_grad = torch.cat(hidden_grads) if hidden_grads else None
    return _Sums(cross_entropy, squared_lse, hidden_grad, weight_grad, bias_grad)


def _logit_gradient(
    logits: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    z_loss: float,
    soft_cap: float | None,
    needs_grad: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The gradient by the logits before the cap, if it is needed, lse, and the logits of the targets."""
    inner = None  # the slope of the cap
    if bias is not None:
        logits = logits.add_(bias)
    if soft_cap is not None:
        logits = capped(logits, soft_cap)
        inner = 1 - (logits / soft_cap).square() if needs_grad else None
    if not needs_grad:
        return None, logits.logsumexp(-1), logits.gather(-1, counted_index(targets)).squeeze(-1)
    grad, lse, target_logits = softmax_gradient_(logits, targets, z_loss)
    return grad if inner is None else grad.mul_(inner), lse, target_logits


def _reciprocal_count(targets: Tensor, dtype: torch.dtype) -> Tensor:
    """One over the number of targets that are not ignored (at least 1), 0-dim."""
    return (targets != IGNORE_INDEX).sum().clamp(min=1).to(dtype).reciprocal()


def _parts(sums: _Sums, reciprocal: Tensor, z_loss: float) -> LossParts:
    """The means of the losses."""
    cross_entropy = sums.cross_entropy * reciprocal
    regulariser = sums.squared_lse * (z_loss * reciprocal)
    return LossParts(cross_entropy + regulariser, cross_entropy, regulariser)


def _matmul_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of the matrix products: that of autocast, which as in torch does not apply to float64."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    device = hidden.device
    if has_autocast(device) and torch.is_autocast_enabled(device.type) and dtype != torch.float64:
        return torch.get_autocast_dtype(device.type)
    return dtype


def _rows(tokens: int, vocab: int) -> int:
    """The number of tokens in a chunk; large, because each chunk costs a pass over the weight's gradient."""
    if tokens * vocab <= SMALL:
        return max(tokens, 1)
    return max(min(512, tokens // 2), tokens // 8, 1)


def _check(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    chunk: int | None,
    z_loss: float,
) -> None:
    """Check the arguments of `linear_cross_entropy`, as described there."""
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ZooError(
            "linear_cross_entropy: expected hidden (n, d) and weight (V, d), "
            f"got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ZooError(
            f"linear_cross_entropy: expected int64 targets of shape ({hidden.shape[0]},), "
            f"got {targets.dtype} {tuple(targets.shape)}"
        )
    if scale is not None and scale.shape not in (weight.shape[:1], (1,)):
        raise ZooError(
            f"linear_cross_entropy: expected scale of shape ({weight.shape[0]},) or (1,), "
            f"got {tuple(scale.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ZooError(
            f"linear_cross_entropy: expected bias of shape ({weight.shape[0]},), got {tuple(bias.shape)}"
        )
    if chunk is not None and chunk < 1:
        raise ZooError(f"linear_cross_entropy: chunk is {chunk}, expected at least 1")
    if z_loss < 0:
        raise ZooError(f"linear_cross_entropy: z_loss is {z_loss}, expected 0 or more")
    _check_ids(targets, len(weight))


def _check_ids(targets: Tensor, vocab: int) -> None:
    """Check that every target can be one, where reading them is free: a GPU would have to be waited for.

    Subclasses of tensors, such as those without memory, need not have values.

    Raises:
        DataError: A target is neither in [0, vocab) nor -1.
    """
    if torch.compiler.is_compiling() or type(targets) is not Tensor or targets.device.type != "cpu":
        return
    if not len(targets):
        return
    least, largest = (int(extreme) for extreme in torch.aminmax(targets))
    if least < IGNORE_INDEX or largest >= vocab:
        wrong = least if least < IGNORE_INDEX else largest
        raise DataError(
            f"targets: id {wrong}; expected 0 to {vocab - 1}, or {IGNORE_INDEX} for positions that are left "
            "out"
        )
