"""Cross entropy of a linear read-out, without ever holding the logits of all tokens.

A vocabulary of 32 000 makes the (tokens, vocabulary) logits the largest tensor of a language
model, and the usual way holds three of them. Here the tokens are taken in chunks and the gradient
of a chunk is formed while its logits are at hand; the backward pass only multiplies by the
gradient that arrives from above. Everything is exact: chunks add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.kernels.matmul import matmul
from zoo.utils.errors import ZooError

IGNORED = -1
"""The target of a token that does not count."""

SMALL = 2**22
"""Logits up to this many entries (16 MiB in float32) are one chunk."""


class LossParts(NamedTuple):
    """A loss and what it consists of: means over the counted targets, 0-dim each.

    Attributes:
        total: what is differentiated, `cross_entropy + z_loss`.
        cross_entropy: in nats per token; carries no gradient.
        z_loss: coefficient * mean(logsumexp(logits)^2); carries no gradient.
        accuracy: share of the targets with the largest logit; None where it is not of interest.
        predicted: (n,) int64, the class with the largest logit; None likewise.
    """

    total: Tensor
    cross_entropy: Tensor
    z_loss: Tensor
    accuracy: Tensor | None = None
    predicted: Tensor | None = None


class _Sums(NamedTuple):
    """Sums over the counted tokens; the gradients are None where nobody asked for them."""

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
    chunk: int | None = None,
) -> LossParts:
    """Mean cross entropy of ``softmax(scale * (hidden @ weight.T) + bias)``, with z-loss.

    The matrix products run in the dtype that autocast dictates, the softmax and the sums over
    chunks in float32 (float64 for float64 inputs). Without any counted target all parts are 0.

    Args:
        hidden: (n, d), floating point.
        weight: (V, d), floating point.
        targets: (n,) int64 in [0, V), or -1 for a token that does not count.
        scale: factor of every logit, (V,) or (1,) (nGPT's s_z), or None.
        bias: added to every logit, (V,) (BERT's head), or None.
        z_loss: coefficient of mean(logsumexp^2), which keeps the logits from drifting.
        chunk: tokens per chunk; None chooses: all of them while the logits are small, then at
            most half and at least an eighth of them.

    Returns:
        The parts; only `total` carries a gradient, to hidden, weight, scale and bias.

    Raises:
        ZooError: shapes that do not fit together, targets that are not int64, a chunk below 1.
    """
    _check(hidden, weight, targets, scale, bias, chunk)
    if scale is not None:
        weight = weight * scale.unsqueeze(-1)  # V x d numbers instead of n x V, and autograd does the rest
    dtype = _matmul_dtype(hidden, weight)
    rows = chunk or _rows(len(hidden), len(weight))
    trained = [t for t in (hidden, weight, bias) if t is not None and t.requires_grad]
    if torch.is_grad_enabled() and trained:
        return LossParts(
            *_LinearCrossEntropy.apply(hidden, weight, bias, targets, z_loss, rows, dtype)  # type: ignore[no-untyped-call]
        )
    sums = _sums(hidden, weight, bias, targets, z_loss, rows, dtype, (False, False, False))
    return _parts(sums, _reciprocal_count(targets, sums.cross_entropy.dtype), z_loss)


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss whose forward pass already forms the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        z_loss: float,
        rows: int,
        dtype: torch.dtype,
    ) -> LossParts:
        sums = _sums(hidden, weight, bias, targets, z_loss, rows, dtype, ctx.needs_input_grad[:3])
        reciprocal = _reciprocal_count(targets, sums.cross_entropy.dtype)
        parts = _parts(sums, reciprocal, z_loss)
        ctx.save_for_backward(reciprocal, sums.hidden_grad, sums.weight_grad, sums.bias_grad)
        ctx.mark_non_differentiable(parts.cross_entropy, parts.z_loss)
        ctx.dtypes = hidden.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype
        return parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # Dividing by the count only here keeps half precision away from its smallest numbers.
        reciprocal, *grads = ctx.saved_tensors
        factor = grad * reciprocal
        pairs = zip(grads, ctx.dtypes, strict=True)
        hidden, weight, bias = ((g * factor).to(dtype) if g is not None else None for g, dtype in pairs)
        return hidden, weight, bias, None, None, None, None


def _sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    z_loss: float,
    rows: int,
    dtype: torch.dtype,
    needs_grad: tuple[bool, bool, bool],
) -> _Sums:
    """Go through the chunks: the sums and, where needed, the gradients of the undivided total."""
    hidden_needs_grad, weight_needs_grad, bias_needs_grad = needs_grad
    exact = torch.promote_types(dtype, torch.float32)
    cross_entropy = hidden.new_zeros((), dtype=exact)
    squared_lse = hidden.new_zeros((), dtype=exact)
    hidden_grads: list[Tensor] = []
    weight_grad: Tensor | None = None
    bias_grad = None if bias is None or not bias_needs_grad else torch.zeros_like(bias, dtype=exact)
    with torch.autocast(hidden.device.type, enabled=False):
        matrix = weight.to(dtype)
        chunks = zip(torch.split(hidden.to(dtype), rows), torch.split(targets, rows), strict=True)
        for h, t in chunks:
            counted = (t != IGNORED).to(exact)
            index = torch.where(t == IGNORED, 0, t).unsqueeze(-1)
            logits = matmul(h, matrix).to(exact)
            if bias is not None:
                logits = logits.add_(bias)
            lse = logits.logsumexp(-1)
            cross_entropy = cross_entropy + ((lse - logits.gather(-1, index).squeeze(-1)) * counted).sum()
            squared_lse = squared_lse + (lse.square() * counted).sum()
            if not any(needs_grad):
                continue
            # d/dlogits of lse - logits[target] + z lse^2 is softmax * (1 + 2 z lse) - onehot.
            slope = (1 + 2 * z_loss * lse) * counted
            grad = logits.sub_(lse.unsqueeze(-1)).exp_().mul_(slope.unsqueeze(-1))
            grad = grad.scatter_add_(-1, index, -counted.unsqueeze(-1))
            if bias_grad is not None:
                bias_grad += grad.sum(0)
            grad = grad.to(dtype)
            if hidden_needs_grad:
                hidden_grads.append(grad @ matrix)
            if weight_needs_grad:
                share = grad.mT @ h
                weight_grad = share.to(exact) if weight_grad is None else weight_grad.add_(share)
    hidden_grad = torch.cat(hidden_grads) if hidden_grads else None
    return _Sums(cross_entropy, squared_lse, hidden_grad, weight_grad, bias_grad)


def _reciprocal_count(targets: Tensor, dtype: torch.dtype) -> Tensor:
    """One over the number of counted targets (at least 1): a 0-dim tensor."""
    return (targets != IGNORED).sum().clamp(min=1).to(dtype).reciprocal()


def _parts(sums: _Sums, reciprocal: Tensor, z_loss: float) -> LossParts:
    """The means."""
    cross_entropy = sums.cross_entropy * reciprocal
    regulariser = sums.squared_lse * (z_loss * reciprocal)
    return LossParts(cross_entropy + regulariser, cross_entropy, regulariser)


def _matmul_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of the matrix products: autocast's, which leaves float64 alone as torch does."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return dtype


def _rows(tokens: int, vocab: int) -> int:
    """Tokens per chunk: few chunks, because each costs a pass over the weight's gradient."""
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
) -> None:
    """Refuse what does not fit together."""
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
