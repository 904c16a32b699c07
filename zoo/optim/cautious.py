"""Cautious updates: entries against the gradient are left out, the others grow (arXiv 2411.16085)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from zoo.kernels.foreach import Many

LEAST_SHARE = 1e-3
"""Lower limit of the share of kept entries, by which an update is divided."""


def agreeing(update: Many, g: Many) -> Many:
    """1 for the entries of an update that point along the gradient, 0 for those against it."""
    return update.mul(g).gt_(0)


def shares(kept: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """The share of kept entries of each parameter, 0-dim, at least `LEAST_SHARE`.

    Args:
        kept: number of kept entries of each parameter, 0-dim.
        parameters: the parameters, whole or sharded.
    """
    return [(n / p.numel()).clamp_min(LEAST_SHARE) for n, p in zip(kept, parameters, strict=True)]


def check_cautious(cautious: bool, momentum: float) -> None:
    """Refuse a cautious form that can leave no entry out.

    Args:
        cautious: whether the cautious form is configured.
        momentum: share of earlier gradients in the update.

    Raises:
        ValueError: The momentum is 0, without which an update never points against the gradient.
    """
    if cautious and momentum == 0:
        raise ValueError("cautious has no effect without momentum; expected a first beta or momentum above 0")
