"""Answers to questions: training recipes are compared over seeds and over new questions.

McNemar's test with one seed each is right for two checkpoints; for two recipes it reports differences that
are due to the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zoo.ablate.statistics import LEVEL
from zoo.ablate.student_t import quantile, two_sided_p
from zoo.utils.arrays import Array


@dataclass(frozen=True)
class ItemScores:
    """The scores of one run on the questions of an outcome.

    Attributes:
        values: the score of every question, in the same order in all runs.
        questions: a fingerprint of the questions; empty: it is not known.
        clusters: the number of the cluster of every question, from 0 in the order of appearance; empty:
            questions are independent.
        accuracy: the share of right answers, if `values` are log-probabilities and it is known.
    """

    values: tuple[float, ...]
    questions: str = ""
    clusters: tuple[int, ...] = ()
    accuracy: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers of one side.

    Attributes:
        mean: mean over seeds.
        sd: standard deviation over seeds.
    """

    mean: float
    sd: float


@dataclass(frozen=True)
class ItemDifference:
    """The difference of the scores of a variant and the baseline.

    Attributes:
        difference: difference of the mean scores, variant less baseline.
        se: standard error of the difference over new seeds and new questions.
        df: degrees of freedom of the seeds, after Welch and Satterthwaite, at most those of the clusters.
    """

    difference: float
    se: float
    df: float

    @property
    def p_value(self) -> float:
        """The two-sided p-value of no difference; 1 without noise, which a t test takes for certainty."""
        if not self.se:
            return 1.0
        return two_sided_p(self.difference / self.se, self.df)

    def half_width(self, level: float = LEVEL) -> float:
        """Half the confidence interval."""
        return quantile((1 + level) / 2, self.df) * self.se


def compare_items(baseline: Array, variant: Array, clusters: Sequence[int] = ()) -> ItemDifference:
    """Compare two recipes on the same questions.

    ``V = V_seeds + V_items - V_residual``, at least V_items: seeds are independent between the sides,
    questions are shared. Questions of one passage are a cluster, and new ones come as new clusters. With n
    questions in G clusters g, d_i the difference of the means over seeds, and r_si what is left of the score
    of question i with seed s without the means of seed and question::

        V_items    = G / (G - 1)  sum_g (sum_{i in g} (d_i - mean d))^2      / n^2
        V_residual = G / (G - 1)  sum_s sum_g (sum_{i in g} r_si)^2          / ((S - 1) S n^2)

    The sums over clusters are those of arXiv 2411.00640 (section 2.2), so that the estimate stays the mean
    over questions. The factor G / (G - 1) is our choice: with a cluster per question, V_items is the variance
    of d_i over n. So are the degrees of freedom, those of the seeds or G - 1 if that is fewer.

    Args:
        baseline: (seeds, items) scores.
        variant: (seeds, items) scores of the same items.
        clusters: the number of each item's cluster; empty: items are independent.

    Raises:
        ValueError: A side has fewer than two seeds, the items differ, or there are fewer than two clusters.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (baseline, variant)]
    if any(side.ndim != 2 or len(side) < 2 for side in sides) or sides[0].shape[1] != sides[1].shape[1]:
        raise ValueError(
            f"scores of shapes {sides[0].shape} and {sides[1].shape}; expected (seeds, items) of the same "
            "items, with at least two seeds each"
        )
    n = sides[0].shape[1]
    labels = np.asarray(clusters if len(clusters) else range(n))
    names, codes = np.unique(labels, return_inverse=True)
    if len(labels) != n or len(names) < 2:
        raise ValueError(
            f"{len(names)} clusters of {len(labels)} items, scores of {n}; expected a cluster of each item, "
            "and at least two"
        )
    of_seeds = [float(side.mean(1).var(ddof=1)) / len(side) for side in sides]
    mean_difference = (sides[1].mean(0) - sides[0].mean(0))[None]
    of_items = _sum_of_squares(mean_difference - mean_difference.mean(), codes) / n**2
    variance = max(sum(of_seeds) + of_items - _residual(sides, codes), of_items)
    spread = sum(v**2 / (len(side) - 1) for v, side in zip(of_seeds, sides, strict=True))
    fewest = float(len(names) - 1)
    df = min(variance**2 / spread, fewest) if spread else fewest
    return ItemDifference(float(sides[1].mean() - sides[0].mean()), math.sqrt(variance), df)


def _residual(sides: list[Array], codes: NDArray[np.intp]) -> float:
    """The variance of the mean difference that neither seeds nor items explain.

    With equally many seeds on both sides it is that of the differences, otherwise the sum over the sides.
    """
    tables = [sides[1] - sides[0]] if sides[0].shape == sides[1].shape else sides
    total = 0.0
    for scores in tables:
        seeds, items = scores.shape
        rest = scores - scores.mean(1, keepdims=True) - scores.mean(0, keepdims=True) + scores.mean()
        total += _sum_of_squares(rest, codes) / ((seeds - 1) * seeds * items**2)
    return total


def _sum_of_squares(scores: Array, codes: NDArray[np.intp]) -> float:
    """G / (G - 1) times the sum of squares of the G clusters' sums, over all rows.

    Args:
        scores: (rows, items) deviations, which sum to 0 in every row.
        codes: the cluster of each item, numbered from 0.
    """
    clusters = int(codes.max()) + 1
    sums = np.stack([np.bincount(codes, weights=row, minlength=clusters) for row in scores])
    return float((sums**2).sum()) * clusters / (clusters - 1)
