"""The token speed-up at one size: one curve of loss over tokens that both sides share.

The variant's curve is the baseline's, shifted by theta + phi u (`zoo.ablate.scale.shift`); the curve is a
quadratic, for two budgets a line. `theta` is ln c at the middle budget of the variant, `phi` the drift of
ln c per e-fold of tokens.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from scipy import special

from zoo.ablate.scale.shift import Ladder
from zoo.ablate.statistics import LEVEL
from zoo.ablate.student_t import quantile, two_sided_p
from zoo.utils.arrays import Array

Cells = Mapping[tuple[float, int], float]
"""The final losses of one side at one size: (tokens, seed) -> loss in nats."""

HUBER = 1.5
"""Number of standard deviations beyond which residuals count linearly in the robust estimate."""
ROUNDING = 1e-9
"""Smallest ln c of sides that are not identical, and smallest decrease of ln loss that counts as one."""
OVERLAP = 0.5
"""The range of ln tokens that the curves must share after the variant's is shifted."""


def exp(ln_c: float) -> float:
    """The factor c; infinite if it overflows, as the ends of wide intervals may; NaN stays NaN."""
    return math.inf if ln_c >= math.log(sys.float_info.max) else math.exp(ln_c)


class RisingLossError(ValueError):
    """The fitted curve does not fall where runs lie, so that no tokens of the one side match the other's."""


@dataclass(frozen=True)
class SizeSpeedup:
    """The speed-up at one size, by itself.

    Attributes:
        params: number of parameters of the baseline's model.
        ln_c: the logarithm of the token speed-up.
        se: standard error of `ln_c` over seeds, by deleting one seed at a time; None if a budget of a side
            has one seed.
        drift: change of ln c per e-fold of tokens; None where a side has two budgets or fewer, whose shift
            is the same at all of them.
        seeds: number of seeds of the side with fewer, see `_seeds_that_count`; the interval has one degree of
            freedom less.
        limits: the smallest and the largest ln c that these budgets can measure.
        curve: coefficients of g, the highest power first.
        centre: mean of ln tokens of the baseline's budgets, where u is 0.
        middle: mean of u over the variant's budgets, where the shift is `ln_c`; 0 if both sides have the
            same budgets.
    """

    params: float
    ln_c: float
    se: float | None
    drift: float | None
    seeds: int
    limits: tuple[float, float]
    curve: tuple[float, ...]
    centre: float
    middle: float = 0.0

    @property
    def comparable(self) -> bool:
        """Whether the losses of the two sides overlap."""
        return self.limits[0] <= self.ln_c <= self.limits[1]

    @property
    def too_close(self) -> bool:
        """Whether the budgets lie so close together that no factor at all could be measured."""
        return self.limits[0] > self.limits[1]

    @property
    def problem(self) -> str:
        """The reason why there is no factor, in a few words; empty if there is one."""
        if self.too_close:
            return "the budgets are too close together"
        return "" if self.comparable else "losses hardly overlap"

    @property
    def consequence(self) -> str:
        """What follows from the `problem`, without full stop."""
        low, high = self.limits
        if self.too_close:
            return (
                "no factor can be told; expected a longest one of "
                f"{math.exp(OVERLAP):.3g} x the shortest or more"
            )
        bound = f"more than {math.exp(high):.2f}" if self.ln_c > high else f"less than {math.exp(low):.2f}"
        return f"the factor is {bound} x"

    def half_width(self, level: float = LEVEL) -> float | None:
        """Half the confidence interval of ln c, by Student's t; None without `se`."""
        if self.se is None:
            return None
        return quantile((1 + level) / 2, self.seeds - 1) * self.se

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of no difference; None without `se`."""
        if self.se is None:
            return None
        if abs(self.ln_c) < ROUNDING or self.se == 0:
            return 0.0 if abs(self.ln_c) >= ROUNDING else 1.0
        return two_sided_p(self.ln_c / self.se, self.seeds - 1)


def size_speedup(params: float, baseline: Cells, variant: Cells) -> SizeSpeedup:
    """Fit the token speed-up of a variant over the baseline at one size.

    Args:
        params: parameters of the baseline's model.
        baseline: losses of the baseline; at least two budgets.
        variant: losses of the variant; one budget is enough if the baseline has twice its tokens.

    Returns:
        The speed-up with its standard error. A seed is deleted on both sides at once; if the sides have
        no seed in common, their variances are added.

    Raises:
        RisingLossError: The curve does not fall with more tokens, at one of the budgets of a side.
        ValueError: There are too few budgets.
    """
    budgets = [len({tokens for tokens, _ in side}) for side in (baseline, variant)]
    most = max(tokens for tokens, _ in baseline)
    if budgets[0] < 2 or (budgets[1] < 2 and most < 2 * max(tokens for tokens, _ in variant)):
        raise ValueError(
            f"{budgets[0]} and {budgets[1]} budgets; expected two of each side, or one of the variant and "
            "twice as many tokens of the baseline"
        )
    side = [mean_losses(cells) for cells in (baseline, variant)]
    centre = float(side[0][0].mean())
    ladder = Ladder(
        np.concatenate([ln_tokens for ln_tokens, _ in side]) - centre,
        np.repeat([False, True], [len(ln_tokens) for ln_tokens, _ in side]),
        min(2, budgets[0] - 1),
        min(budgets) >= 3,
        float(side[1][0].mean()) - centre,
    )
    y = np.concatenate([ln_loss for _, ln_loss in side])[None]
    shift = ladder.search(y)
    se, seeds = _jackknife(ladder, baseline, variant, shift)
    curves = ladder.project(y, shift)[1]
    (curve,) = curves
    if curve[-2] >= -ROUNDING:
        raise RisingLossError(
            "the loss does not fall with more tokens, so that no speed-up can be read off it"
        )
    if ladder.slopes(shift, curves).max() >= -ROUNDING:
        raise RisingLossError("no falling curve fits the losses of both sides, so that there is no speed-up")
    theta, drift = map(float, shift[0])
    return SizeSpeedup(
        params,
        theta,
        se,
        drift if ladder.drifts else None,
        seeds,
        _limits(*(ln_tokens for ln_tokens, _ in side)),
        tuple(map(float, curve)),
        centre,
        ladder.middle,
    )


def _limits(baseline: Array, variant: Array) -> tuple[float, float]:
    """The values of ln c at which the two ladders of ln tokens overlap by `OVERLAP`.

    A single budget of the variant has no range; its tokens must lie within the range of the baseline's.
    """
    shared = OVERLAP if len(variant) > 1 else 0.0
    return float(baseline.min() - variant.max() + shared), float(baseline.max() - variant.min() - shared)


def size_speedups(params: float, tokens: Sequence[float], losses: Array) -> list[SizeSpeedup]:
    """Fit one size of many studies at once, in which both sides have the same budgets and seeds.

    Args:
        params: parameters of the baseline's model.
        tokens: the budgets, two or more, ascending.
        losses: (studies, 2, budgets, seeds), those of the baseline first.
    """
    studies, _, budgets, seeds = losses.shape
    ln_tokens = np.log(tokens)
    centre = float(ln_tokens.mean())
    ladder = Ladder(
        np.tile(ln_tokens - centre, 2), np.repeat([False, True], budgets), min(2, budgets - 1), budgets > 2
    )
    logs = np.log(losses)
    y = logs.mean(3).reshape(studies, -1)
    shifts = ladder.search(y)
    curves = ladder.project(y, shifts)[1]
    deleted = np.empty((seeds, studies))
    for seed in range(seeds if seeds > 1 else 0):
        without = np.delete(logs, seed, 3).mean(3).reshape(studies, -1)
        deleted[seed] = ladder.refine(without, shifts)[:, 0]
    limits = _limits(ln_tokens, ln_tokens)
    return [
        SizeSpeedup(
            params,
            float(shifts[i, 0]),
            math.sqrt(jackknife_variance(deleted[:, i])) if seeds > 1 else None,
            float(shifts[i, 1]) if ladder.drifts else None,
            seeds,
            limits,
            tuple(map(float, curves[i])),
            centre,
        )
        for i in range(studies)
    ]


def huberised(size: SizeSpeedup, sides: Sequence[Cells]) -> list[Cells]:
    """The losses of both sides with spiked runs moved towards the curve, for Huber's estimate.

    Args:
        size: the fit of these losses.
        sides: the losses of the baseline and of the variant.

    Returns:
        The losses, in which residuals of ln loss beyond `HUBER` standard deviations are reduced to this
        limit. The deviation is the median distance from the curve, so that spikes do not widen it and at
        least half of the losses stay.
    """
    residuals: list[dict[tuple[float, int], float]] = []
    for k, side in enumerate(sides):
        residuals.append({})
        for (tokens, seed), loss in side.items():
            u = math.log(tokens) - size.centre
            shift = size.ln_c + (size.drift or 0.0) * (u - size.middle)
            fitted = float(np.polyval(size.curve, u + k * shift))
            residuals[k][tokens, seed] = math.log(loss) - fitted
    everything = [value for side in residuals for value in side.values()]
    bound = HUBER * float(np.median(np.abs(everything)) / special.ndtri(0.75))
    return [
        {key: loss * math.exp(min(max(rest[key], -bound), bound) - rest[key]) for key, loss in side.items()}
        for side, rest in zip(sides, residuals, strict=True)
    ]


def mean_losses(cells: Cells) -> tuple[Array, Array]:
    """ln tokens of every budget, ascending, and the mean of ln loss over its seeds."""
    budgets = sorted({tokens for tokens, _ in cells})
    means = [np.mean([math.log(loss) for (t, _), loss in cells.items() if t == tokens]) for tokens in budgets]
    return np.log(budgets), np.array(means)


def _jackknife(ladder: Ladder, baseline: Cells, variant: Cells, full: Array) -> tuple[float | None, int]:
    """The standard error of theta by deleting one seed with all its budgets, and the number of seeds."""
    ours, theirs = ({seed for _, seed in side} for side in (baseline, variant))
    seeds = min(_seeds_that_count(side) for side in (baseline, variant))
    if seeds < 2:
        return None, seeds
    independent = ours.isdisjoint(theirs)
    every = [*sorted(ours), *sorted(theirs)] if independent else sorted(ours | theirs)
    budgets = [sorted({tokens for tokens, _ in side}) for side in (baseline, variant)]
    rows = [
        [
            [math.log(loss) for (t, seed), loss in side.items() if t == tokens and seed != gone]
            for side, of_side in zip((baseline, variant), budgets, strict=True)
            for tokens in of_side
        ]
        for gone in every
    ]
    y = np.array([[np.mean(cell) if cell else 0.0 for cell in row] for row in rows])
    weights = np.array([[float(bool(cell)) for cell in row] for row in rows])
    thetas = ladder.refine(y, np.repeat(full, len(y), 0), weights)[:, 0]
    parts = [thetas[: len(ours)], thetas[len(ours) :]] if independent else [thetas]
    return math.sqrt(sum(map(jackknife_variance, parts))), seeds


def _seeds_that_count(side: Cells) -> int:
    """The number of seeds of a side, which may have fewer of them at some budgets.

    It is the largest number that more than half of the budgets have, but at most twice the fewest (our
    choice), and 1 where a budget has a single seed, whose noise no deletion shows. If every seed of any
    budget counted, equal sides with 3, 3 and 1 seeds would be told apart at .05 in .13 of the studies, those
    with 3, 1 and 1 in .36, with 5, 2 and 2 in .10, and with 10, 10 and 2 in .13.
    """
    numbers = Counter(tokens for tokens, _ in side).values()
    fewest = min(numbers)
    return 1 if fewest == 1 else min(median_low(numbers), 2 * fewest)


def jackknife_variance(values: Sequence[float] | Array) -> float:
    """The variance of an estimate, from its values with each of n replicates deleted."""
    spread = np.asarray(values) - np.mean(values)
    return float((len(values) - 1) / len(values) * (spread**2).sum())
