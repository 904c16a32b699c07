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

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from zoo.ablate.scale.speedup import Cells, jackknife_variance, mean_losses
from zoo.ablate.student_t import quantile

Array = NDArray[np.float64]

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
    """The mean losses of all cells, as columns."""

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


def _fit(cells: _Cells, weighted: bool, start: Array | None) -> Array:
    """The best E, a, b, ln A, ln B, g0 and g1, from one start or from several."""
    low, distance = float(np.exp(cells.ln_loss.min())), cells.ln_n - cells.ln_n.max()
    least, most = EXPONENTS
    limits = [0.0, least, least, *[-np.inf] * 4], [low, most, most, *[np.inf] * 4]

    def parts(p: Array) -> tuple[Array, Array, Array, Array]:
        """The law's loss, its terms of size and tokens, and ln tokens with the speed-up."""
        e, a, b, ln_scale_n, ln_scale_t, g0, g1 = p
        ln_tokens = cells.ln_t + cells.variant * (g0 + g1 * distance)
        # The search may try any number; beyond these bounds only the direction matters.
        of_size = np.exp((ln_scale_n - a * cells.ln_n).clip(-EXTREME, EXTREME))
        of_tokens = np.exp((ln_scale_t - b * ln_tokens).clip(-EXTREME, EXTREME))
        return e + of_size + of_tokens, of_size, of_tokens, ln_tokens

    def solve(begin: Array, weights: Array) -> optimize.OptimizeResult:
        def residuals(p: Array) -> Array:
            values: Array = weights * (cells.ln_loss - np.log(parts(p)[0]))
            return values

        def jacobian(p: Array) -> Array:
            loss, of_size, of_tokens, ln_tokens = parts(p)
            gained = -p[2] * of_tokens * cells.variant
            columns = [
                np.ones_like(loss),
                -cells.ln_n * of_size,
                -ln_tokens * of_tokens,
                of_size,
                of_tokens,
                gained,
                gained * distance,
            ]
            values: Array = -(weights / loss)[:, None] * np.stack(columns, 1)
            return values

        tolerance = {"xtol": 1e-11, "ftol": 1e-11, "gtol": 1e-11}
        with np.errstate(all="ignore"):  # scipy divides by zero near a bound
            return optimize.least_squares(
                residuals, begin, jacobian, limits, x_scale="jac", max_nfev=2000, **tolerance
            )

    ones = np.ones_like(cells.ln_n)
    begins = [
        np.array([e * low, x, x, math.log(0.2 * low), math.log(0.5 * low), 0.0, 0.0])
        for e in (0.25, 0.5, 0.75)
        for x in (0.2, 0.45)
    ]
    results = [solve(begin, ones) for begin in ([start] if start is not None else begins)]
    best = min(results, key=lambda result: float(result.cost))
    if weighted:
        loss, _, of_tokens, _ = parts(best.x)
        slope = best.x[2] * of_tokens
        best = solve(best.x, np.sqrt(cells.seeds) * loss / slope)
    return np.asarray(best.x, dtype=np.float64)
