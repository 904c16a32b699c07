"""Summary statistics of a distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

QUANTILES = {"min": 0.0, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}
"""The names under which the quantiles are reported."""

MOST = 1 << 24
"""The largest number of entries that `torch.quantile` takes."""


def summarise(values: Tensor) -> dict[str, float]:
    """The mean, population standard deviation and quantiles of the entries of a tensor.

    Args:
        values: (...) of any dtype and device; of more than `MOST` entries, the quantiles are those of the
            first `MOST`.
    """
    exact = values.detach().double().flatten().cpu()
    numbers = torch.quantile(exact[:MOST], torch.tensor(list(QUANTILES.values()), dtype=exact.dtype))
    std = exact.std(correction=0).item()
    return {"mean": exact.mean().item(), "std": std, **dict(zip(QUANTILES, numbers.tolist(), strict=True))}


def finite_or_none(value: float) -> float | None:
    """The number, or None for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
