"""How well a search finds the best rate, and how far the rate drifts over sizes, with intervals.

A search is a draw: y[c, s] = best[c] + shift[s] + error[c, s] in octaves, c a cell and s a seed. The shift
belongs to a seed, whose order of the text all its cells share; it cancels in a drift. The errors are
independent, with one standard deviation for all cells of a model with an optimizer.

Two seeds and two or three sizes have one or two degrees of freedom of their own. The error of a search is
therefore pooled over all cells of a model with an optimizer, less the shifts of the seeds (an analysis of
variance with two factors), and the interval of a row follows from it and from the numbers of sizes and seeds.
A row with at least `ENOUGH` degrees of freedom of its own, those of its searches about parallel lines of the
seeds, has the wider one of this interval and that of its own scatter, which grows if the best rates do not
lie on a line. What is estimated is the line through the best rates of these very sizes.

In simulations the pooled interval alone covers 95 %, and the wider one of the two 98 %, of rates off a line
more, with normal errors and with errors as wide-tailed as t with three degrees of freedom
(tests/test_drift.py). No interval has what is the same in the searches of all seeds, such as the error of a
parabola whose grid lies to one side of the best rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats

ENOUGH = 3
"""Degrees of freedom from which the scatter of a row counts by itself; t is 3.2 there, 4.3 with two."""

Octaves = npt.NDArray[np.float64]
"""log2 of best rates."""


@dataclass(frozen=True)
class Scatter:
    """The error of a search, pooled over cells.

    Attributes:
        cells: the number of cells.
        sd: the standard deviation in octaves.
        degrees: the degrees of freedom of the standard deviation.
    """

    cells: int
    sd: float
    degrees: int


def deviations(searches: Octaves) -> Octaves:
    """How far every search of (cells, seeds) lies from the mean of its cell, less the shift of its seed."""
    centred: Octaves = searches - searches.mean(1, keepdims=True)
    rest: Octaves = centred - centred.mean(0)
    return rest


def pooled(searches: Octaves) -> Scatter | None:
    """The error of a search from those of (cells, seeds); None with one cell or one seed."""
    cells, seeds = searches.shape
    degrees = (cells - 1) * (seeds - 1)
    if not degrees:
        return None
    return Scatter(cells, math.sqrt(float((deviations(searches) ** 2).sum()) / degrees), degrees)


def equal_scatter(groups: Iterable[Sequence[float]]) -> float | None:
    """The p-value that sizes of deviations do not differ between groups, by their ranks (Kruskal and Wallis).

    As Levene's test compares mean deviations, this one compares their ranks: single searches that went astray
    would hide every difference of means. None with fewer than two groups.
    """
    several = [group for group in groups if len(group) > 1]
    return float(stats.kruskal(*several).pvalue) if len(several) > 1 else None


@dataclass(frozen=True)
class Drift:
    """How far the best rate moves from the smallest to the largest size of an axis, in octaves.

    Attributes:
        octaves: the drift by a line of log2 rate over log2 size, in octaves; negative if the rate falls.
        half: half the width of the 95 % interval, in octaves; None: the scatter of searches is not known.
    """

    octaves: float
    half: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval."""
        return None if self.half is None else (self.octaves - self.half, self.octaves + self.half)

    def __str__(self) -> str:
        ends = self.interval
        return f"{self.octaves:+.2f}" + ("" if ends is None else f" ({ends[0]:+.2f} to {ends[1]:+.2f})")


def drift(sizes: Sequence[float], rates: Sequence[Sequence[float]], search: Scatter | None = None) -> Drift:
    """The drift over sizes.

    Args:
        sizes: the sizes of the axis, at least two.
        rates: the best rate of every size, for each seed.
        search: the error of a search; None: it is not known.
    """
    x, y = np.log2(sizes), np.log2(np.asarray(rates, dtype=np.float64))
    span = float(x[-1] - x[0])
    x = x - x.mean()
    y = y - y.mean(1, keepdims=True)
    slope = float((y @ x).mean() / (x @ x))
    known = [(search.sd, search.degrees)] if search else []
    own = y.size - len(y) - 1
    if own >= ENOUGH:
        known.append((math.sqrt(float(((y - slope * x) ** 2).sum()) / own), own))
    share = span / math.sqrt(len(y) * float(x @ x))
    halves = [_quantile(degrees) * sd * share for sd, degrees in known]
    return Drift(slope * span, max(halves, default=None))


@cache
def _quantile(degrees: int) -> float:
    """Student's t that 2.5 % exceed."""
    return float(stats.t.ppf(0.975, degrees))
