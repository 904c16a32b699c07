"""The speed-up across sizes: a straight line through ln c over ln N, with the wider of two intervals.

Sizes are the replicates. The interval is the wider one of the scatter of the sizes about the line and of
the seeds within the sizes: the interval of Hartung and Knapp with the guard of Röver, Knapp and Friede
(BMC Med. Res. Methodol. 2015), with sizes instead of trials. Intervals over seeds alone are
too narrow whenever an error is shared by all seeds of a size, as that of tuning always is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from zoo.ablate.alpha import ALPHA
from zoo.ablate.scale.looks import adjusted_p
from zoo.ablate.scale.speedup import ROUNDING, SizeSpeedup, exp
from zoo.ablate.statistics import LEVEL
from zoo.ablate.student_t import critical_value, quantile, two_sided_p
from zoo.utils.arrays import Array

FEWEST_SIZES = 4
"""Smallest number of sizes for a line."""
POWER = 0.8
"""The probability with which a study detects a difference that it calls detectable."""
PRIOR_SEEDS = 3
"""Degrees of freedom with which the seed variance of the other sizes counts at each size."""


@dataclass(frozen=True)
class Estimate:
    """A value of the line across sizes, or its slope, with standard errors.

    Attributes:
        estimate: the value: ln c, or its change per e-fold of parameters.
        scatter: standard error from the scatter of the sizes, with `df_scatter` degrees of freedom.
        df_scatter: number of sizes less two.
        seeds: standard error from the seeds within the sizes.
        df_seeds: degrees of freedom of `seeds`, after Satterthwaite.
        critical: the critical value of |t| with `df_scatter` at this look, if sizes are added until a
            decision; None: there is one look, and Student's t holds.
        level: the level of `critical`, at which the intervals of all looks hold jointly: exactly in the
            middle of the sizes, whose critical value the largest size and the slope share. Their intervals
            miss a little more often, with a probability of .056 and .055 instead of .05 at the five sizes of
            Q1 (docs/verdict-across-scale.md, Limits).
    """

    estimate: float
    scatter: float
    df_scatter: float
    seeds: float
    df_seeds: float
    critical: float | None = None
    level: float = LEVEL

    def half_width(self, level: float = LEVEL) -> float:
        """Half the confidence interval, the wider one of the two.

        If sizes are added until a decision, the intervals of all looks hold jointly with `self.level`, and
        `level` has no effect. Both intervals then have the error of the present look, that of `critical`, so
        that a claim at `self.level` holds exactly if the interval excludes 0.
        """
        error = 1 - level if self.critical is None else self._error_of_look
        return max(_reach(error, *pair) for pair in self._errors())

    @property
    def half95(self) -> float:
        """Half the 95 % interval; if sizes are added until a decision, that of the level of all looks."""
        return self.half_width()

    @property
    def p_value(self) -> float:
        """The two-sided p-value of zero, by the wider one of the two intervals."""
        if abs(self.estimate) < ROUNDING:
            return 1.0
        return max(two_sided_p(self.estimate / se, df) if se else 0.0 for se, df in self._errors())

    @property
    def binding(self) -> tuple[float, float]:
        """The standard error and the degrees of freedom of the wider interval."""
        return max(self._errors(), key=lambda pair: _reach(self._error_of_look, *pair))

    def p_over_looks(self, alpha: float) -> float:
        """The p-value that claims at the level `alpha`, or a share of it, are made by.

        If sizes are added until a decision, it takes the earlier looks into account.
        """
        if self.critical is None:
            return self.p_value
        return adjusted_p(self.p_value, self.critical, self.df_scatter, alpha)

    def detectable(self, alpha: float = ALPHA) -> float:
        """The factor c that such a study detects with probability `POWER` if claims need p <= alpha."""
        error = self._error_of_look * alpha / (1 - self.level)
        # At a small level the interval with fewer degrees of freedom may be the wider one.
        se, df = max(self._errors(), key=lambda pair: _reach(error, *pair))
        return exp(_reach(error, se, df) + quantile(POWER, df) * se)

    @property
    def _error_of_look(self) -> float:
        """The probability that |t| exceeds its critical value at this look although nothing differs."""
        if self.critical is None:
            return 1 - self.level
        return two_sided_p(self.critical, self.df_scatter)

    def _errors(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return (self.scatter, self.df_scatter), (self.seeds, self.df_seeds)


def _reach(error: float, se: float, df: float) -> float:
    """The distance from 0 that an estimate exceeds with probability `error` if there is no difference."""
    return critical_value(error, df) * se if se else 0.0


@dataclass(frozen=True)
class Prediction:
    """A prediction for one further size.

    Attributes:
        estimate: ln c on the line.
        half95: half the 95 % prediction interval.
    """

    estimate: float
    half95: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the prediction interval."""
        return abs(value - self.estimate) <= self.half95


class Line:
    """An unweighted straight line through the sizes' ln c over ln N.

    Attributes:
        x: ln parameters of each size.
    """

    def __init__(self, sizes: Sequence[SizeSpeedup]) -> None:
        """Fit the line.

        Args:
            sizes: the measurements of at least three sizes (three serve a back-test; a verdict needs
                `FEWEST_SIZES`). If none has more than one seed, the intervals are those of the scatter alone.

        Raises:
            ValueError: There are fewer than three sizes.
        """
        if len(sizes) < 3:
            raise ValueError(f"{len(sizes)} sizes; expected at least three")
        self.x = np.log([size.params for size in sizes])
        self._theta = np.array([size.ln_c for size in sizes])
        self._slopes = (self.x - self.x.mean()) / ((self.x - self.x.mean()) ** 2).sum()
        fitted = self._theta.mean() + (self.x - self.x.mean()) * (self._slopes @ self._theta)
        self._df = len(sizes) - 2
        self._critical: float | None = None
        self._level = LEVEL
        self._residual = float(((self._theta - fitted) ** 2).sum() / self._df)
        self._variances, self._seed_df = _seed_variances(sizes)

    def looked_at(self, critical: float, level: float = LEVEL) -> Line:
        """The line for a study in which sizes are added until a decision.

        Args:
            critical: the critical value of |t| at this look.
            level: the level at which the intervals of all looks hold jointly with it.
        """
        line = copy(self)
        line._critical, line._level = critical, level
        return line

    @property
    def middle(self) -> Estimate:
        """ln c in the middle of the sizes."""
        return self.at(float(self.x.mean()))

    @property
    def largest(self) -> Estimate:
        """ln c at the largest size."""
        return self.at(float(self.x.max()))

    @property
    def slope(self) -> Estimate:
        """The change of ln c per e-fold of parameters."""
        return self._read(self._slopes)

    def at(self, ln_params: float) -> Estimate:
        """ln c on the line.

        Args:
            ln_params: ln of the parameters, within the measured range.
        """
        return self._read(self._weights(ln_params))

    def predict(self, ln_params: float) -> Prediction:
        """The prediction of ln c at one further size.

        Args:
            ln_params: ln of the parameters of this size.
        """
        weights = self._weights(ln_params)
        value = self._read(weights)
        scatter = math.sqrt(self._residual * (float(weights @ weights) + 1))
        seeds = math.sqrt(value.seeds**2 + float(self._variances.mean()))
        halves = [
            quantile((1 + LEVEL) / 2, df) * se
            for se, df in ((scatter, value.df_scatter), (seeds, value.df_seeds))
        ]
        return Prediction(value.estimate, max(halves))

    def _weights(self, at: float) -> Array:
        weights: Array = 1 / len(self.x) + (at - self.x.mean()) * self._slopes
        return weights

    def _read(self, weights: Array) -> Estimate:
        """The estimate with given weights of the sizes, and its two standard errors."""
        parts = weights**2 * self._variances
        total = float(parts.sum())
        df = total**2 / float((parts**2 / self._seed_df).sum()) if total else float(self._df)
        return Estimate(
            float(weights @ self._theta),
            math.sqrt(self._residual * float(weights @ weights)),
            self._df,
            math.sqrt(total),
            df,
            self._critical,
            self._level,
        )


def back_test(sizes: Sequence[SizeSpeedup]) -> Prediction:
    """The prediction of the largest size by the line through all others.

    A miss forbids extrapolation; a hit alone does not justify it.

    Args:
        sizes: the measurements of at least four sizes.
    """
    ascending = sorted(sizes, key=lambda size: size.params)
    return Line(ascending[:-1]).predict(math.log(ascending[-1].params))


def _seed_variances(sizes: Sequence[SizeSpeedup]) -> tuple[Array, Array]:
    """For every size the variance of ln c over seeds, shrunk towards that of the others, and its freedom."""
    df = np.array([size.seeds - 1 if size.se is not None else 0 for size in sizes], dtype=np.float64)
    count = np.array([size.seeds for size in sizes], dtype=np.float64)
    single = np.array([0.0 if s.se is None else s.se**2 * s.seeds for s in sizes])  # of one seed
    weighted = df * single
    others = df.sum() - df
    pooled = np.divide(weighted.sum() - weighted, others, out=single.copy(), where=others > 0)
    return (weighted + PRIOR_SEEDS * pooled) / (df + PRIOR_SEEDS) / count, df + PRIOR_SEEDS
