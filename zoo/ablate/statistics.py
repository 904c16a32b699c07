"""Means and differences over seeds, and how sure they are: Student's t, Welch's t, Holm's correction."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import mean, stdev

LEVEL = 0.95
"""Of the confidence intervals."""

POWER = 0.8
"""Probability of finding a difference, for what could have been found and how many seeds would."""

MOST_SEEDS = 1000
"""Where the search for a number of seeds ends."""


@dataclass(frozen=True)
class Summary:
    """A mean over seeds: of one value there is neither deviation nor interval.

    Attributes:
        n: number of values.
        mean: of the values.
        sd: sample standard deviation, n - 1 in the denominator.
        low: lower end of the confidence interval, mean - t sd / sqrt(n).
        high: its upper end.
    """

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A difference of means.

    Attributes:
        test: what was computed: "paired t" or "Welch's t".
        n: pairs, or seeds of both sides together.
        difference: its mean; below 0 where the first side has the lower values.
        low: lower end of the confidence interval of the difference.
        high: its upper end.
        p: two-sided, of this comparison alone.
        detectable: the smallest true difference that such data would show with probability 0.8.
        seeds: that would show the difference found with that probability, per side; None: more
            than 1000.
    """

    test: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    detectable: float
    seeds: int | None


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and confidence interval.

    Args:
        values: one per seed, at least one.
    """
    n, centre = len(values), mean(values)
    if n == 1:
        return Summary(1, centre)
    sd = stdev(values)
    half = _critical(n - 1, 1 - LEVEL) * sd / sqrt(n)
    return Summary(n, centre, sd, centre - half, centre + half)


def paired(ours: Sequence[float], theirs: Sequence[float], alpha: float) -> Comparison:
    """Student's t test of the differences of pairs: what both sides of a pair share cancels.

    Args:
        ours: one value per seed.
        theirs: of the same seeds, in the same order; two or more.
        alpha: level at which a difference would be found.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n, sd = len(differences), stdev(differences)
    return _compare(
        "paired t", n, mean(differences), sd / sqrt(n), n - 1, alpha, lambda m: (sd / sqrt(m), m - 1)
    )


def welch(ours: Sequence[float], theirs: Sequence[float], alpha: float) -> Comparison:
    """Welch's t test, for seeds that are not the same on both sides.

    Args:
        ours: two or more values.
        theirs: two or more values.
        alpha: level at which a difference would be found.
    """
    # As squares of standard errors, of which Welch and Satterthwaite's degrees of freedom are made.
    a, b = (stdev(side) ** 2 / len(side) for side in (ours, theirs))
    lower = a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1)
    dof = (a + b) ** 2 / lower if lower else len(ours) + len(theirs) - 2
    variances = a * len(ours) + b * len(theirs)
    return _compare(
        "Welch's t",
        len(ours) + len(theirs),
        mean(ours) - mean(theirs),
        sqrt(a + b),
        dof,
        alpha,
        lambda m: (sqrt(variances / m), 2 * m - 2),
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number, so that one false alarm among all stays at its level (Holm 1979).

    The i-th smallest of m becomes p (m - i + 1), at least the one before it and at most 1.
    """
    adjusted, least = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = adjusted[i] = max(least, min(1.0, ps[i] * (len(ps) - rank)))
    return adjusted


def power(shift: float, dof: float, alpha: float) -> float:
    """Probability that a two-sided t test finds a difference, with the right sign.

    Args:
        shift: the true difference over its standard error.
        dof: degrees of freedom.
        alpha: level of the test.
    """
    from scipy.stats import nct

    return float(nct.sf(_critical(dof, alpha), dof, abs(shift)))


def _compare(
    test: str,
    n: int,
    difference: float,
    error: float,
    dof: float,
    alpha: float,
    design: Callable[[int], tuple[float, float]],
) -> Comparison:
    """A t test.

    Args:
        test: its name.
        n: as in `Comparison`.
        difference: of the means.
        error: standard error of the difference.
        dof: degrees of freedom.
        alpha: level at which a difference would be found.
        design: standard error and degrees of freedom with another number of seeds.
    """
    from scipy.stats import t

    half = _critical(dof, 1 - LEVEL) * error
    alone = 0.0 if difference else 1.0  # where nothing scatters
    return Comparison(
        test=test,
        n=n,
        difference=difference,
        low=difference - half,
        high=difference + half,
        p=float(2 * t.sf(abs(difference) / error, dof)) if error else alone,
        detectable=error * _shift(dof, alpha),
        seeds=_seeds(difference, design, alpha),
    )


@cache
def _critical(dof: float, alpha: float) -> float:
    """What |t| exceeds with probability alpha where there is no difference."""
    from scipy.stats import t

    return float(t.isf(alpha / 2, dof))


@cache
def _shift(dof: float, alpha: float) -> float:
    """The true difference, in standard errors, that is found with probability 0.8."""
    from scipy.optimize import brentq

    # The median of |t| is about the shift, so that twice the critical value is more than enough.
    return float(brentq(lambda shift: power(shift, dof, alpha) - POWER, 0, 4 * _critical(dof, alpha) + 4))


def _seeds(difference: float, design: Callable[[int], tuple[float, float]], alpha: float) -> int | None:
    """The smallest number of seeds that finds `difference` with probability 0.8."""

    def found(m: int) -> bool:
        error, dof = design(m)
        return not error or power(difference / error, dof, alpha) >= POWER

    numbers = range(2, MOST_SEEDS + 1)
    index = bisect_left(numbers, True, key=found) if difference else len(numbers)
    return numbers[index] if index < len(numbers) else None
