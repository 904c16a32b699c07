"""The token speed-up at one size: one curve of loss over tokens that both sides share.

With u = ln T - mean ln T, the baseline follows ``ln L = g(u)`` and the variant
``ln L = g(u + theta + phi u)``; g is a quadratic (a line for two budgets). `theta` is ln c at the
middle budget, `phi` the drift of ln c per e-fold of tokens. Given both, g is linear least squares, so
two numbers are searched for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]
Cells = Mapping[tuple[float, int], float]
"""The final losses of one side at one size: (tokens, seed) -> loss in nats."""

STARTS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Values of theta from which the search starts."""
OVERLAP = 0.5
"""By how much the range of ln tokens must exceed the absolute theta: else the curves overlap too little."""


@dataclass(frozen=True)
class Shift:
    """How far the variant's curve is shifted against the baseline's.

    Attributes:
        theta: ln c at the middle budget.
        drift: change of ln c per e-fold of tokens; 0 where two budgets cannot show one.
    """

    theta: float
    drift: float


@dataclass(frozen=True)
class SizeSpeedup:
    """The speed-up at one size, by itself.

    Attributes:
        params: parameters of the baseline's model.
        ln_c: the logarithm of the token speed-up.
        se: its standard error over seeds, by deleting one seed at a time; None with one seed.
        drift: change of ln c per e-fold of tokens.
        seeds: how many seeds there are; the interval has one degree of freedom less.
        limit: the largest absolute ln c that these budgets can measure.
        curve: coefficients of g, the highest power first.
        centre: mean of ln tokens, where u is 0.
    """

    params: float
    ln_c: float
    se: float | None
    drift: float
    seeds: int
    limit: float
    curve: tuple[float, ...]
    centre: float

    @property
    def comparable(self) -> bool:
        """Whether the losses of the two sides overlap."""
        return abs(self.ln_c) <= self.limit

    def half_width(self, level: float = 0.95) -> float | None:
        """Half the confidence interval of ln c, by Student's t; None with one seed."""
        if self.se is None:
            return None
        return float(stats.t.ppf((1 + level) / 2, self.seeds - 1)) * self.se

    @property
    def p_value(self) -> float | None:
        """Two-sided, of no difference; None with one seed."""
        if self.se is None:
            return None
        if self.se == 0:
            return 0.0 if self.ln_c else 1.0
        return float(2 * stats.t.sf(abs(self.ln_c) / self.se, self.seeds - 1))


def size_speedup(params: float, baseline: Cells, variant: Cells) -> SizeSpeedup:
    """Fit one size.

    Args:
        params: parameters of the baseline's model.
        baseline: losses of the baseline; at least two budgets.
        variant: losses of the variant; one budget is enough if the baseline has twice its tokens.

    Returns:
        The speed-up with its standard error. If both sides have the same seeds, a seed is deleted on
        both sides at once; otherwise the sides' variances are added.

    Raises:
        ValueError: there are too few budgets.
    """
    budgets = [len({tokens for tokens, _ in side}) for side in (baseline, variant)]
    most = max(tokens for tokens, _ in baseline)
    if budgets[0] < 2 or (budgets[1] < 2 and most < 2 * max(tokens for tokens, _ in variant)):
        raise ValueError(
            f"{budgets[0]} and {budgets[1]} budgets; expected two of each side, or one of the variant and "
            "twice as many tokens of the baseline"
        )
    degree, drifts = min(2, budgets[0] - 1), min(budgets) >= 3
    centre = float(np.mean([math.log(tokens) for tokens in {tokens for tokens, _ in baseline}]))
    shift, curve = _fit(baseline, variant, centre, degree, drifts)
    se, seeds = _jackknife(baseline, variant, centre, degree, drifts, shift)
    ends = [math.log(tokens) for side in (baseline, variant) for tokens, _ in side]
    return SizeSpeedup(
        params, shift.theta, se, shift.drift, seeds, max(ends) - min(ends) - OVERLAP, curve, centre
    )


def mean_losses(cells: Cells) -> tuple[Array, Array]:
    """ln tokens of every budget, ascending, and the mean of ln loss over its seeds."""
    budgets = sorted({tokens for tokens, _ in cells})
    means = [np.mean([math.log(loss) for (t, _), loss in cells.items() if t == tokens]) for tokens in budgets]
    return np.log(budgets), np.array(means)


def _fit(
    baseline: Cells,
    variant: Cells,
    centre: float,
    degree: int,
    drifts: bool,
    near: Shift | None = None,
) -> tuple[Shift, tuple[float, ...]]:
    """The best shift, searched for from one near it or from several starts, and the shared curve."""
    (x_baseline, y_baseline), (x_variant, y_variant) = mean_losses(baseline), mean_losses(variant)
    u, u_variant = x_baseline - centre, x_variant - centre
    y = np.concatenate([y_baseline, y_variant])

    def curve(shift: Array) -> tuple[Array, Array]:
        drift = shift[1] if drifts else 0.0
        powers = np.vander(np.concatenate([u, u_variant + shift[0] + drift * u_variant]), degree + 1)
        coefficients: Array = np.linalg.lstsq(powers, y, rcond=None)[0]
        return coefficients, y - powers @ coefficients

    def residuals(shift: Array) -> Array:
        return curve(shift)[1]

    tolerance = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
    begins = [Shift(theta, 0.0) for theta in STARTS] if near is None else [near]
    starts = [[begin.theta, begin.drift] if drifts else [begin.theta] for begin in begins]
    results = [optimize.least_squares(residuals, start, **tolerance) for start in starts]
    # A curve that is bent back on itself fits as well from the far side; of equal fits the nearest counts.
    best = min(result.cost for result in results)
    equal = [result.x for result in results if result.cost <= best * (1 + 1e-9) + 1e-18]
    shift = min(equal, key=lambda x: abs(x[0]))
    return Shift(float(shift[0]), float(shift[1]) if drifts else 0.0), tuple(map(float, curve(shift)[0]))


def _jackknife(
    baseline: Cells, variant: Cells, centre: float, degree: int, drifts: bool, full: Shift
) -> tuple[float | None, int]:
    """Standard error of theta by deleting one seed, all its budgets, and the number of seeds."""

    def theta(baseline: Cells, variant: Cells) -> float:
        return _fit(baseline, variant, centre, degree, drifts, full)[0].theta

    ours, theirs = ({seed for _, seed in side} for side in (baseline, variant))
    if min(len(ours), len(theirs)) < 2:
        return None, min(len(ours), len(theirs))
    if ours == theirs:
        values = [theta(_without(baseline, seed), _without(variant, seed)) for seed in sorted(ours)]
        return math.sqrt(jackknife_variance(values)), len(ours)
    of_baseline = [theta(_without(baseline, seed), variant) for seed in sorted(ours)]
    of_variant = [theta(baseline, _without(variant, seed)) for seed in sorted(theirs)]
    total = jackknife_variance(of_baseline) + jackknife_variance(of_variant)
    return math.sqrt(total), min(len(ours), len(theirs))


def jackknife_variance(values: Sequence[float]) -> float:
    """The variance of an estimate, from its values with one of n replicates deleted."""
    spread = np.asarray(values) - np.mean(values)
    return float((len(values) - 1) / len(values) * (spread**2).sum())


def _without(cells: Cells, seed: int) -> Cells:
    return {key: loss for key, loss in cells.items() if key[1] != seed}
