"""Cautious updates: entries against the gradient are left out, the others grow (arXiv 2411.16085)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from zoo.kernels.foreach import Many

LEAST_SHARE = 1e-3
"""Lower limit of the share of kept entries that an update is divided by."""


def agreeing(update: Many, g: Many) -> Many:
    """1 for the entries of an update that point along the gradient, 0 for those against it."""
    return update.mul(g).gt_(0)


def shares(kept: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """The share of kept entries of each parameter, 0-dim, at least `LEAST_SHARE`.

    Args:
        kept: their number among all entries, 0-dim.
        parameters: whole or sharded.
    """
    return [(n / p.numel()).clamp_min(LEAST_SHARE) for n, p in zip(kept, parameters, strict=True)]


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
