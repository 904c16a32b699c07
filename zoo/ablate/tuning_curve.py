"""Tuning curves of random search, the result of the best of k trials, with exact bands.

The bands are those of Lourie, Cho and He, "Show Your Work with Confidence: Confidence Bands for Tuning
Curves" (arXiv 2311.09480): a simultaneous confidence band of the distribution of a trial's result,
equal-tailed at every order statistic, is also one of the median of the best of k trials, for all k at once.
The only assumption is that trials are independent with a continuous result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from zoo.utils.arrays import Array

FEWEST_TRIALS = 20
"""Smallest number of trials for a band, which would be uninformative with fewer (our choice)."""


@dataclass(frozen=True)
class TuningCurve:
    """The median result of the best of k trials, with its band.

    Attributes:
        trials: k = 1, 2, ..., as far as the band has two ends.
        median: the estimate of the median.
        low: the lower end of the band.
        high: the upper end of the band; infinite if too many trials diverged.
    """

    trials: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def tuning_curve(losses: Sequence[float], level: float = 0.95) -> TuningCurve | None:
    """The tuning curve of the trials of a random search.

    Args:
        losses: one loss per trial; infinite for a trial that diverged.
        level: the probability that the whole band holds.

    Returns:
        The curve; None if even the median of a single trial has no band with two ends.
    """
    x = np.sort(np.asarray(losses, dtype=np.float64))
    below, above = order_statistics_band(len(x), level)
    trials, median, low, high = [], [], [], []
    for k in range(1, len(x) + 1):
        share = 1 - 0.5 ** (1 / k)  # the best of k is below this quantile with probability 1/2
        lower = np.flatnonzero(above < share)
        if not lower.size:
            break
        upper = np.flatnonzero(below >= share)
        trials.append(k)
        median.append(float(x[math.ceil(share * len(x)) - 1]))
        low.append(float(x[lower[-1]]))
        high.append(float(x[upper[0]]) if upper.size else math.inf)
    return TuningCurve(tuple(trials), tuple(median), tuple(low), tuple(high)) if trials else None


@cache
def order_statistics_band(n: int, level: float) -> tuple[Array, Array]:
    """Bounds of the n order statistics of uniform numbers that hold jointly with probability `level`.

    Each bound excludes the same probability by itself, at both ends of every order statistic.

    Returns:
        The lower bounds (n,), and the upper bounds (n,).
    """
    from scipy.optimize import brentq
    from scipy.stats import beta

    i = np.arange(1, n + 1)

    def bounds(log_tail: float) -> tuple[Array, Array]:
        tail = math.exp(log_tail)
        return beta.ppf(tail, i, n + 1 - i), beta.isf(tail, i, n + 1 - i)

    # Each of n bounds misses less often than the band, and at least a n-th as often.
    lowest, highest = math.log((1 - level) / (4 * n)), math.log((1 - level) / 2)
    tail = brentq(lambda x: probability_inside(*bounds(x)) - level, lowest, highest, xtol=1e-10)
    return bounds(float(tail))


def probability_inside(low: Array, high: Array) -> float:
    """The probability that each order statistic of n uniform numbers lies between its bounds.

    The numbers below t are a Poisson process conditioned on n of them being below 1. Its distribution of
    counts is propagated from bound to bound, without the counts that a bound excludes (Khmaladze and
    Shinjikashvili 2001).

    Args:
        low: (n,) ascending, between 0 and 1.
        high: (n,) ascending, each above its lower bound.
    """
    from scipy.stats import poisson

    n = len(low)
    times = np.sort(np.concatenate([low, high, [1.0]]))
    counts = np.zeros(n + 1)
    counts[0], before = 1.0, 0.0
    for t in times:
        step = poisson.pmf(np.arange(n + 1), n * (t - before))
        counts = np.convolve(counts, step)[: n + 1]
        least, most = np.searchsorted(high, t, "right"), np.searchsorted(low, t, "left")
        counts[:least] = counts[most + 1 :] = 0.0  # the number of values below t is limited from both sides
        before = t
    return float(counts[n] / poisson.pmf(n, n))
