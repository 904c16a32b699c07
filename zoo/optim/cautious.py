"""Cautious updates: entries against the gradient are left out, the others grow (arXiv 2411.16085)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from zoo.utils.sharded import sum_over_ranks

LEAST_SHARE = 1e-3
"""Lower limit of the share of kept entries that an update is divided by."""


def masked(update: Tensor, momentum: Tensor, g: Tensor) -> Tensor:
    """The entries of a whole update where momentum and gradient agree, over their share."""
    mask = (momentum * g > 0).to(update.dtype)
    return update * mask / mask.mean().clamp_min(LEAST_SHARE)


def agreeing(
    updates: Sequence[Tensor], grads: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Which entries point along the gradient, and how many.

    Args:
        updates: this rank's rows.
        grads: likewise.
        parameters: whole or sharded.

    Returns:
        For every parameter the mask of this rank's rows, 0 or 1, and the number of ones over all ranks.
    """
    masks = [(update * grad > 0).to(grad.dtype) for update, grad in zip(updates, grads, strict=True)]
    kept = [mask.sum() for mask in masks]
    sum_over_ranks(kept, parameters, [tuple(range(p.dim())) for p in parameters])
    return masks, kept


def check_cautious(cautious: bool, momentum: float) -> None:
    """Refuse a cautious form that leaves nothing out.

    Args:
        cautious: whether it is asked for.
        momentum: share of earlier gradients in the update.

    Raises:
        ValueError: Without momentum, an update never points against the gradient.
    """
    if cautious and momentum == 0:
        raise ValueError("cautious has no effect without momentum; expected a first beta or momentum above 0")
