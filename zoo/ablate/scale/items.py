"""Answers to questions: training recipes are compared over seeds and over new questions.

McNemar's test with one seed each is right for two checkpoints; for two recipes it reports differences that
are due to the seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.ablate.statistics import LEVEL

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ItemDifference:
    """The difference of the scores of a variant and the baseline.

    Attributes:
        difference: difference of the mean scores, variant less baseline.
        se: standard error of the difference over new seeds and new questions.
        df: degrees of freedom of the seeds, after Welch and Satterthwaite.
    """

    difference: float
    se: float
    df: float

    @property
    def p_value(self) -> float:
        """The two-sided p-value of no difference."""
        if not self.se:
            return float(self.difference == 0)
        return float(2 * stats.t.sf(abs(self.difference) / self.se, self.df))

    def half_width(self, level: float = LEVEL) -> float:
        """Half the confidence interval."""
        return float(stats.t.ppf((1 + level) / 2, self.df)) * self.se


def compare_items(baseline: Array, variant: Array) -> ItemDifference:
    """Compare two recipes on the same questions.

    ``V = V_seeds + V_items - V_residual``, at least V_items: seeds are independent between the sides,
    questions are shared.

    Args:
        baseline: (seeds, items) scores.
        variant: (seeds, items) scores of the same items.

    Raises:
        ValueError: A side has fewer than two seeds, or the items differ.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (baseline, variant)]
    if any(side.ndim != 2 or len(side) < 2 for side in sides) or sides[0].shape[1] != sides[1].shape[1]:
        raise ValueError(
            f"scores of shapes {sides[0].shape} and {sides[1].shape}; expected (seeds, items) of the same "
            "items, with at least two seeds each"
        )
    of_seeds = [float(side.mean(1).var(ddof=1)) / len(side) for side in sides]
    n = sides[0].shape[1]
    of_items = float((sides[1].mean(0) - sides[0].mean(0)).var(ddof=1)) / n
    variance = max(sum(of_seeds) + of_items - _residual(sides), of_items)
    spread = sum(v**2 / (len(side) - 1) for v, side in zip(of_seeds, sides, strict=True))
    df = variance**2 / spread if spread else float(n - 1)
    return ItemDifference(float(sides[1].mean() - sides[0].mean()), math.sqrt(variance), df)


def _residual(sides: list[Array]) -> float:
    """The variance of the mean difference that neither seeds nor items explain.

    With equally many seeds on both sides it is that of the differences, otherwise the sum over the sides.
    """
    tables = [sides[1] - sides[0]] if sides[0].shape == sides[1].shape else sides
    total = 0.0
    for scores in tables:
        seeds, items = scores.shape
        rest = scores - scores.mean(1, keepdims=True) - scores.mean(0, keepdims=True) + scores.mean()
        total += float((rest**2).sum()) / ((seeds - 1) * (items - 1) * seeds * items)
    return total
