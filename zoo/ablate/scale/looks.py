"""Exact critical values for studies in which seeds or sizes are added until a decision.

Student's t is pivotal under "no difference", so that one simulation of its joint distribution over the looks
holds for all worlds. The error is spent as alpha (n / n_max)^2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zoo.ablate.alpha import ALPHA
from zoo.ablate.student_t import two_sided_p
from zoo.utils.arrays import Array

STUDIES = 2_000_000
"""Number of simulated studies without a difference; the first critical value is accurate to about 3 %."""
CHUNK = 100_000
FIRST_LOOK = 3
MOST_LOOKS = 30
"""Limit of the declared seeds and sizes (our choice): every look takes 16 MB, and no study has so many."""
MIXTURE = 4.0
"""g, the variance of mean / sd that the anytime-valid test assumes (arXiv 2310.03722)."""


@dataclass(frozen=True)
class Looks:
    """The declarations of a study with looks while seeds or sizes are added.

    Attributes:
        max_seeds: the largest number of seeds, for a comparison at fewer than four sizes.
        sizes: parameters of all sizes that may be trained, in the order in which they are added.
        anytime: whether seeds are added without a declared maximum.
    """

    max_seeds: int | None = None
    sizes: tuple[float, ...] = ()
    anytime: bool = False

    @property
    def several(self) -> bool:
        """Whether there may be several looks."""
        return bool(self.max_seeds is not None or self.sizes or self.anytime)

    def critical_value(self, seeds: int, alpha: float) -> float:
        """The critical value of |t| after a number of seeds; infinite if there is no look at it.

        Args:
            seeds: the number of seeds of each side, at most `max_seeds`.
            alpha: the probability of a false alarm over all looks.
        """
        if self.max_seeds is None:
            return anytime_value(seeds, alpha)
        return critical_values(self.max_seeds, alpha)[seeds - FIRST_LOOK] if seeds >= FIRST_LOOK else math.inf

    def error_of_look(self, seeds: int, alpha: float) -> float:
        """The probability that |t| exceeds its critical value at a look although nothing differs."""
        return two_sided_p(self.critical_value(seeds, alpha), seeds - 1)

    def first_look(self, alpha: float) -> int | None:
        """The number of seeds at the first look; None if no look at up to `MOST_LOOKS` is possible."""
        numbers = range(2, 1 + (self.max_seeds or MOST_LOOKS))
        return next((n for n in numbers if self.critical_value(n, alpha) < math.inf), None)

    def too_early(self, seeds: int, alpha: float, what: str = "seeds") -> str:
        """The reason for which there is no look after a number of seeds; empty if there is one.

        Args:
            seeds: the number of seeds of each side.
            alpha: the probability of a false alarm over all looks.
            what: what is counted, in the plural.
        """
        if self.critical_value(seeds, alpha) < math.inf:
            return ""
        first = self.first_look(alpha)
        if first is None:
            return (
                f"no look at up to {self.max_seeds or MOST_LOOKS} {what} is possible at the level {alpha:g}"
            )
        return f"{seeds} {what}: the first look is after {first}: no word before"


@functools.cache
def critical_values(n_max: int, alpha: float = ALPHA, studies: int = STUDIES) -> tuple[float, ...]:
    """Critical values of |t| for looks after 3, 4, ..., n_max seeds.

    Args:
        n_max: the declared maximum.
        alpha: the probability of a false alarm over all looks.
        studies: number of simulated studies.

    Raises:
        ValueError: The maximum is below three, or beyond `MOST_LOOKS`.
    """
    if not FIRST_LOOK <= n_max <= MOST_LOOKS:
        raise ValueError(f"at most {n_max} seeds; expected {FIRST_LOOK} to {MOST_LOOKS}")
    random = np.random.default_rng(0)
    counts = np.arange(1, n_max + 1)
    parts = []
    for _ in range(0, studies, CHUNK):
        draws = random.standard_normal((min(CHUNK, studies), n_max))
        mean = draws.cumsum(1) / counts
        square = (draws**2).cumsum(1) - counts * mean**2
        n = counts[FIRST_LOOK - 1 :]
        parts.append(
            np.abs(mean[:, FIRST_LOOK - 1 :]) * np.sqrt(n) / np.sqrt(square[:, FIRST_LOOK - 1 :] / (n - 1))
        )
    spent = [alpha * (n / n_max) ** 2 for n in range(FIRST_LOOK, n_max + 1)]
    return _boundaries(np.concatenate(parts), spent)


@functools.cache
def critical_values_of_sizes(
    ln_params: tuple[float, ...], first: int = 4, alpha: float = ALPHA, studies: int = STUDIES
) -> tuple[float, ...]:
    """Critical values of the line's |t| in the middle of the sizes, looked at after each added size.

    Args:
        ln_params: ln parameters of all declared sizes, in the order in which they are added.
        first: number of sizes at the first look.
        alpha: the probability of a false alarm over all looks.
        studies: number of simulated studies.
    """
    random = np.random.default_rng(0)
    parts = []
    for _ in range(0, studies, CHUNK):
        theta = random.standard_normal((min(CHUNK, studies), len(ln_params)))
        looks = []
        for k in range(first, len(ln_params) + 1):
            x, y = np.array(ln_params[:k]), theta[:, :k]
            x = x - x.mean()
            slope = y @ x / (x @ x)
            middle = y.mean(1)
            residual = ((y - middle[:, None] - slope[:, None] * x) ** 2).sum(1) / (k - 2)
            looks.append(np.abs(middle) / np.sqrt(residual / k))
        parts.append(np.stack(looks, 1))
    most = len(ln_params)
    return _boundaries(np.concatenate(parts), [alpha * (k / most) ** 2 for k in range(first, most + 1)])


def adjusted_p(p: float, critical: float, df: float, alpha: float) -> float:
    """A p-value that can be compared with `alpha` although there were earlier looks at the study.

    Args:
        p: the p-value of Student's t at this look alone.
        critical: the critical value of |t| at this look, for `alpha`.
        df: degrees of freedom of t.
        alpha: the probability of a false alarm over all looks. For a share of it, as with several variants,
            the result is an approximation, which assumes proportional spending.
    """
    of_look = two_sided_p(critical, df)
    return min(1.0, p * alpha / of_look) if of_look else 1.0


def spent_p(p: float, look: int, first: int, most: int | None) -> float:
    """A p-value that can be compared with the error of all looks, of a test that no critical values are for.

    Each look has its own part of the error, alpha (look / most)^2 less that of the looks before (Bonferroni),
    so that it holds however the statistics of the looks depend on each other. Without a maximum the k-th look
    has alpha / (k (k + 1)); these parts sum to alpha, and their choice is ours.

    Args:
        p: the p-value at this look alone.
        look: number of seeds or sizes at this look; fewer than `first` count as the first look.
        first: their number at the first look.
        most: their declared maximum; None: there is none.
    """
    if most is None:
        k = max(1, look - first + 1)
        return min(1.0, p * k * (k + 1))
    before = look - 1 if look > first else 0
    return min(1.0, p * most**2 / (look**2 - before**2))


def _boundaries(statistics: Array, spent: Sequence[float]) -> tuple[float, ...]:
    """The value at every look that the given share of the studies not stopped before exceeds."""
    alive = np.ones(len(statistics), dtype=bool)
    before, values = 0.0, []
    for look, total in enumerate(spent):
        reject = round((total - before) * len(statistics))
        here = statistics[alive, look]
        # An error that is too small to be simulated is not spent.
        value = float(np.partition(here, len(here) - reject)[len(here) - reject]) if reject else math.inf
        values.append(value)
        alive &= statistics[:, look] < value
        before = total
    return tuple(values)


def anytime_value(n: int, alpha: float = ALPHA) -> float:
    """The critical value of |t| after n seeds without a declared maximum; infinite if there is none.

    It holds for all n simultaneously, by an e-value with mean / sd ~ N(0, `MIXTURE`) (arXiv 2310.03722).
    """
    growth = 1 + n * MIXTURE
    q = float((math.sqrt(growth) / alpha) ** (2 / n))
    if q >= growth:
        return math.inf
    return math.sqrt((n - 1) * (q - 1) / (1 - q / growth))


def anytime_p(t: float, n: int) -> float:
    """1 / e, with the e-value of `anytime_value`, which can be compared with any level after any n.

    Args:
        t: Student's t over n seeds.
        n: number of seeds, two or more.
    """
    x, g = t * t / (n - 1), MIXTURE
    ln_e = n / 2 * (math.log1p(x) - math.log1p(x / (1 + n * g))) - 0.5 * math.log1p(n * g)
    return math.exp(-max(0.0, ln_e))


def anytime_p_so_far(ts: Mapping[int, float]) -> tuple[float, int]:
    """1 / (the largest e so far), and the number of seeds at which e was largest.

    The probability that e ever exceeds 1 / alpha is at most alpha without a difference (Ville's inequality),
    so that its largest value may decide at any time, also after it has fallen again. Only looks whose
    estimate has the sign of the present one count: this is our choice, and makes p larger if anything.

    Args:
        ts: Student's t by the number of seeds, ascending, the present look last.
    """
    *_, present = ts.values()
    ps = {n: anytime_p(t, n) for n, t in ts.items() if t * present > 0} or {max(ts): 1.0}
    best = min(ps, key=lambda n: ps[n])
    return ps[best], best


def saturation(sd_of_pair: float, sd_of_tuning: float) -> float:
    """The number of seeds from which the error of tuning is the larger part of the error of a difference.

    Further seeds then only sharpen the error of tuning, because all seeds share it.

    Args:
        sd_of_pair: standard deviation of the difference of one seed.
        sd_of_tuning: standard deviation of the difference by tuning alone.
    """
    return (sd_of_pair / sd_of_tuning) ** 2 if sd_of_tuning else math.inf
