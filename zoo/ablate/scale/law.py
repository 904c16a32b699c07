"""The shared scaling law, as a second opinion beside the line.

``L = E + A N^-a + B (c T)^-b`` with ``ln c = g0 + g1 ln(N / N_max)`` of the variant: exponents are shared by
both sides (arXiv 2602.07712 finds separate laws ill-conditioned). E, a and b are nuisance parameters: with
six sizes E is known to about .08 nats, and its error is correlated with those of b and B, but ln c is well
determined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize

from zoo.ablate.scale.speedup import Cells, jackknife_variance, mean_losses
from zoo.ablate.student_t import quantile
from zoo.utils.arrays import Array

EXPONENTS = (0.05, 1.5)
"""The range of a and b."""
EXTREME = 50.0
"""Bound of the logarithm of each term of the law; losses are far inside."""


@dataclass(frozen=True)
class Law:
    """The scaling law L = E + A N^-a + B (c T)^-b, fitted to the runs of a baseline and a variant.

    Attributes:
        irreducible: E, in nats.
        a: exponent of the parameters.
        b: exponent of the tokens.
        ln_c: ln c at the largest size.
        slope: change of ln c per e-fold of parameters.
        half95: half the 95 % interval of `ln_c`, by deleting one size at a time, Student's t with sizes - 2
            degrees of freedom; None with fewer than four sizes.
        slope_half95: half the 95 % interval of `slope`.
    """

    irreducible: float
    a: float
    b: float
    ln_c: float
    slope: float
    half95: float | None
    slope_half95: float | None


def fit_law(
    baseline: Mapping[float, Cells],
    variant: Mapping[float, Cells],
    *,
    weighted: bool = True,
) -> Law:
    """Fit both sides of a ladder.

    Args:
        baseline: losses by parameters.
        variant: losses of the variant by parameters of the baseline's models.
        weighted: whether to weight each cell by its seeds times (L / slope)^2, so that residuals are in ln
            tokens.

    Raises:
        ValueError: There are fewer than three sizes on both sides.
    """
    sizes = sorted(baseline.keys() & variant.keys())
    if len(sizes) < 3:
        raise ValueError(f"{len(sizes)} sizes; expected at least three")

    def fit(kept: list[float], start: Array | None = None) -> Array:
        return _fit(_Cells.of({n: baseline[n] for n in kept}, {n: variant[n] for n in kept}), weighted, start)

    best = fit(sizes)
    e, a, b, _, _, g0, g1 = map(float, best)
    half = slope_half = None
    if len(sizes) > 3:
        deleted = []
        for left_out in sizes:
            kept = [n for n in sizes if n != left_out]
            *_, here, trend = map(float, fit(kept, best))
            deleted.append((here + trend * math.log(sizes[-1] / kept[-1]), trend))
        t = quantile(0.975, len(sizes) - 2)
        half, slope_half = (
            t * math.sqrt(jackknife_variance(values)) for values in zip(*deleted, strict=True)
        )
    return Law(e, a, b, g0, g1, half, slope_half)


@dataclass(frozen=True)
class _Cells:
    """The mean losses of all cells, as columns, and the law's residuals at them.

    The parameters of the law are E, a, b, ln A, ln B, g0 and g1, (7,).

    Attributes:
        ln_n: (cells,) ln of the number of parameters of the baseline's model.
        ln_t: (cells,) ln of the number of tokens.
        ln_loss: (cells,) mean over the seeds of ln loss.
        seeds: (cells,) number of seeds.
        variant: (cells,) 1 for cells of the variant, 0 for those of the baseline.
    """

    ln_n: Array
    ln_t: Array
    ln_loss: Array
    seeds: Array
    variant: Array

    @classmethod
    def of(cls, baseline: Mapping[float, Cells], variant: Mapping[float, Cells]) -> _Cells:
        rows = []
        for side, ladder in enumerate((baseline, variant)):
            for params, cells in ladder.items():
                for ln_tokens, ln_loss in zip(*mean_losses(cells), strict=True):
                    seeds = sum(math.isclose(math.log(t), ln_tokens) for t, _ in cells)
                    rows.append((math.log(params), ln_tokens, ln_loss, seeds, side))
        return cls(*np.array(rows, dtype=np.float64).T)

    @cached_property
    def distance(self) -> Array:
        """(cells,) ln(N / N_max), at most 0."""
        distance: Array = self.ln_n - self.ln_n.max()
        return distance

    @property
    def lowest_loss(self) -> float:
        """The lowest mean loss, in nats, which bounds E."""
        return float(np.exp(self.ln_loss.min()))

    def terms(self, p: Array) -> tuple[Array, Array, Array, Array]:
        """The law's loss, its terms of size and tokens, and ln tokens with the speed-up; (cells,) each."""
        e, a, b, ln_scale_n, ln_scale_t, g0, g1 = p
        ln_tokens = self.ln_t + self.variant * (g0 + g1 * self.distance)
        # The search may try any number; beyond these bounds only the direction matters.
        of_size = np.exp((ln_scale_n - a * self.ln_n).clip(-EXTREME, EXTREME))
        of_tokens = np.exp((ln_scale_t - b * ln_tokens).clip(-EXTREME, EXTREME))
        return e + of_size + of_tokens, of_size, of_tokens, ln_tokens

    def residuals(self, p: Array, weights: Array) -> Array:
        """(cells,) weighted differences of ln loss between the cells and the law."""
        residuals: Array = weights * (self.ln_loss - np.log(self.terms(p)[0]))
        return residuals

    def jacobian(self, p: Array, weights: Array) -> Array:
        """(cells, 7), the derivatives of the residuals by the parameters of the law."""
        loss, of_size, of_tokens, ln_tokens = self.terms(p)
        by_g0 = -p[2] * of_tokens * self.variant
        columns = [
            np.ones_like(loss),
            -self.ln_n * of_size,
            -ln_tokens * of_tokens,
            of_size,
            of_tokens,
            by_g0,
            by_g0 * self.distance,
        ]
        jacobian: Array = -(weights / loss)[:, None] * np.stack(columns, 1)
        return jacobian


def _fit(cells: _Cells, weighted: bool, start: Array | None) -> Array:
    """The best E, a, b, ln A, ln B, g0 and g1, from one start or from several."""
    ones = np.ones_like(cells.ln_n)
    starts = _starts(cells) if start is None else [start]
    results = [_solve(cells, begin, ones) for begin in starts]
    best = min(results, key=lambda result: float(result.cost))
    if weighted:
        loss, _, of_tokens, _ = cells.terms(best.x)
        slope = best.x[2] * of_tokens
        best = _solve(cells, best.x, np.sqrt(cells.seeds) * loss / slope)
    return np.asarray(best.x, dtype=np.float64)


def _starts(cells: _Cells) -> list[Array]:
    """Starts of the search that divide the lowest loss among E and the terms of size and tokens."""
    low = cells.lowest_loss
    return [
        np.array([e * low, x, x, math.log(0.2 * low), math.log(0.5 * low), 0.0, 0.0])
        for e in (0.25, 0.5, 0.75)
        for x in (0.2, 0.45)
    ]


def _solve(cells: _Cells, start: Array, weights: Array) -> optimize.OptimizeResult:
    """Minimise the weighted squared residuals from one start, with E, a and b within their bounds."""
    least, most = EXPONENTS
    bounds = [0.0, least, least, *[-np.inf] * 4], [cells.lowest_loss, most, most, *[np.inf] * 4]
    with np.errstate(all="ignore"):  # scipy divides by zero near a bound
        return optimize.least_squares(
            cells.residuals,
            start,
            cells.jacobian,
            bounds,
            x_scale="jac",
            max_nfev=2000,
            xtol=1e-11,
            ftol=1e-11,
            gtol=1e-11,
            args=(weights,),
        )
