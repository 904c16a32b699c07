"""Means and differences over seeds with their uncertainty: t tests, Holm's correction, statistical power."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from statistics import mean, stdev, variance
from typing import Any

from zoo.ablate.student_t import critical_value, quantile

LEVEL = 0.95
"""Confidence level of all intervals."""

POWER = 0.8
"""The statistical power that `Comparison.detectable` and `Comparison.seeds` refer to."""

LARGE_SHIFT = 2000.0
"""The difference, in standard errors, above which only the estimate of the standard error counts as random.

The power that is left out is below 1e-6, since the random part of the difference is 1.
"""

MAX_SEEDS = 1000
"""Largest number of seeds in the search for a sufficient number."""


def format_level(level: float) -> str:
    """The level of an interval as text: 95 %."""
    return f"{100 * level:.6g} %"


@dataclass(frozen=True)
class Summary:
    """A mean over seeds; a single value has neither a deviation nor an interval.

    Attributes:
        n: number of values.
        mean: mean of the values.
        sd: sample standard deviation, with n - 1 in the denominator.
        low: lower end of the confidence interval of the mean, mean - t sd / sqrt(n).
        high: its upper end.
    """

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A difference of two means and its t test.

    Attributes:
        test: "paired t" or "Welch's t".
        n: the number of pairs, or of seeds of both sides together.
        difference: the first mean less the second.
        low: lower end of the confidence interval of the difference.
        high: its upper end.
        p: two-sided p value, not adjusted for other comparisons.
        detectable: the smallest true difference that such data would show with probability `POWER`.
        seeds: the number of seeds per side that would show the observed difference with probability
            `POWER`; None: more than `most_seeds`, or no number if the difference is within `least`.
        error: the standard error of the difference.
        most_seeds: the largest number of seeds that was considered for `seeds`.
        least: the difference that a claim must exceed whatever its test says.
    """

    test: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    detectable: float
    seeds: int | None
    error: float
    most_seeds: int = MAX_SEEDS
    least: float = 0.0

    @property
    def is_within_least(self) -> bool:
        """Whether the difference may not be claimed whatever the test says."""
        return 0 < self.least >= abs(self.difference)

    def shows(self, difference: float, error: float, dof: float, alpha: float) -> bool:
        """Whether data would show a true difference with probability `POWER`.

        Args:
            difference: the true difference.
            error: its standard error.
            dof: degrees of freedom.
            alpha: the significance level.
        """
        return abs(difference) >= detectable_difference(error, dof, alpha, self.least)


def summarise(values: Sequence[float]) -> Summary:
    """The mean, standard deviation and confidence interval of one or more values."""
    from scipy.stats import ttest_1samp

    if len(values) == 1:
        return Summary(1, values[0])
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # values that are nearly equal
        interval = ttest_1samp(values, 0.0).confidence_interval(LEVEL)
    return Summary(len(values), mean(values), stdev(values), float(interval.low), float(interval.high))


def paired_t_test(
    ours: Sequence[float], theirs: Sequence[float], alpha: float, least: float = 0.0
) -> Comparison:
    """Student's t test of the differences of pairs, in which effects common to both sides cancel.

    Args:
        ours: one value per seed, two or more.
        theirs: the values of the same seeds in the same order.
        alpha: the significance level that `detectable` and `seeds` refer to.
        least: the difference that a claim must exceed whatever the test says.
    """
    from scipy.stats import ttest_rel

    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n, sd = len(differences), stdev(differences)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # differences nearly equal
        test = ttest_rel(ours, theirs)
    return _comparison(
        "paired t", n, mean(differences), test, sd / sqrt(n), alpha, least, lambda m: (sd / sqrt(m), m - 1)
    )


def welch_t_test(
    ours: Sequence[float], theirs: Sequence[float], alpha: float, least: float = 0.0
) -> Comparison:
    """Welch's t test, for sides whose seeds are not the same.

    Args:
        ours: two or more values.
        theirs: two or more values.
        alpha: the significance level that `detectable` and `seeds` refer to.
        least: the difference that a claim must exceed whatever the test says.
    """
    from scipy.stats import ttest_ind

    variances = variance(ours), variance(theirs)
    error = sqrt(variances[0] / len(ours) + variances[1] / len(theirs))
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # values that are nearly equal
        test = ttest_ind(ours, theirs, equal_var=False)
    return _comparison(
        "Welch's t",
        len(ours) + len(theirs),
        mean(ours) - mean(theirs),
        test,
        error,
        alpha,
        least,
        lambda m: (sqrt(sum(variances) / m), 2 * m - 2),
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm 1979), so that the probability of any false alarm is alpha.

    The i-th smallest of m p values becomes p (m - i + 1), at least the one before it and at most 1.
    """
    adjusted, least = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = adjusted[i] = max(least, min(1.0, ps[i] * (len(ps) - rank)))
    return adjusted


def power(shift: float, dof: float, alpha: float) -> float:
    """The probability that a two-sided t test finds a difference, with the right sign.

    Args:
        shift: the true difference over its standard error.
        dof: degrees of freedom.
        alpha: significance level of the test.
    """
    from scipy.stats import chi2, nct

    critical = critical_value(alpha, dof)
    if abs(shift) > LARGE_SHIFT:  # there SciPy's noncentral t takes minutes, or ends without a result
        return float(chi2.cdf(dof * (shift / critical) ** 2, dof))
    return float(nct.sf(critical, dof, abs(shift)))


def _comparison(
    name: str,
    n: int,
    difference: float,
    test: Any,  # Any: a result of scipy, which has no type stubs
    error: float,
    alpha: float,
    least: float,
    design: Callable[[int], tuple[float, float]],
) -> Comparison:
    """Make the `Comparison` of a t test, with its power.

    Args:
        name: name of the test.
        n: the number of pairs, or of seeds of both sides together.
        difference: difference of the means.
        test: the result of scipy, undefined if `error` is 0.
        error: standard error of the difference.
        alpha: the significance level of `detectable` and `seeds`.
        least: the difference that a claim must exceed.
        design: a function of the number of seeds per side that returns standard error and degrees of freedom.
    """
    interval = test.confidence_interval(LEVEL)
    without_noise = 0.0 if difference else 1.0
    found = Comparison(
        test=name,
        n=n,
        difference=difference,
        low=float(interval.low) if error else difference,
        high=float(interval.high) if error else difference,
        p=float(test.pvalue) if error else without_noise,
        detectable=detectable_difference(error, float(test.df), alpha, least),
        seeds=None,
        error=error,
        least=least,
    )
    return replace(found, seeds=_sufficient_seeds(found, design, alpha))


def detectable_difference(error: float, dof: float, alpha: float, least: float) -> float:
    """The smallest true difference that a study shows with probability `POWER`.

    Args:
        error: its standard error.
        dof: degrees of freedom.
        alpha: the significance level.
        least: the difference that the observed one must exceed whatever the test says.
    """
    of_test = error * detectable_shift(dof, alpha)
    return max(of_test, least + error * quantile(POWER, dof)) if least else of_test


@cache
def detectable_shift(dof: float, alpha: float) -> float:
    """The true difference, in standard errors, that a two-sided t test detects with probability `POWER`.

    Args:
        dof: degrees of freedom.
        alpha: significance level of the test.
    """
    from scipy.optimize import brentq

    # The median of |t| is about the shift, so that twice the critical value is a sufficient bound.
    return float(
        brentq(lambda shift: power(shift, dof, alpha) - POWER, 0, 4 * critical_value(alpha, dof) + 4)
    )


def _sufficient_seeds(
    found: Comparison, design: Callable[[int], tuple[float, float]], alpha: float
) -> int | None:
    """The smallest number of seeds that shows the observed difference with probability `POWER`."""
    numbers = range(2, MAX_SEEDS + 1)
    index = len(numbers)
    if found.difference and not found.is_within_least:
        index = bisect_left(numbers, True, key=lambda m: found.shows(found.difference, *design(m), alpha))
    return numbers[index] if index < len(numbers) else None
