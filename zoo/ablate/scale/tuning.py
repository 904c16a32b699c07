"""Tuning by a parabola over the learning rate instead of the best point of a grid.

The error of tuning is shared by all seeds of a size, so that no test over seeds detects it. A parabola
through the best point and its neighbours reduces it to a third of that of the best point, at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zoo.utils.arrays import Array

MOST_EXTENSIONS = 4
"""Largest number of points that are added while the best one is the first or the last."""
FEWEST_ON_LINE = 3
"""Smallest number of tuned sizes through which a line of ln rate over ln N is drawn."""
STRAIGHT = 0.2
"""Largest standard deviation of residuals with which a line of ln rate over ln N is used."""
WINDOW = math.log(4)
"""Distance in ln rate from the best random point up to which points are fitted by a parabola (our choice)."""
FEWEST_FITTED = 5
"""Smallest number of random points that are fitted by a parabola (our choice)."""

GAPS = 3.0
"""Number of standard deviations of tuning alone that a difference at one size must exceed."""


@dataclass(frozen=True)
class Parabola:
    """The loss over ln rate near the best tried rate.

    Attributes:
        ln_rate: ln rate of the vertex, at most half a step from the best point.
        loss: loss at the vertex.
        curvature: half the second derivative, in nats per (ln rate)^2.
    """

    ln_rate: float
    loss: float
    curvature: float


def best_tried(losses: Mapping[float, float]) -> float:
    """The tried rate with the lowest loss; of equal ones the lowest rate, in whatever order they were tried.

    Args:
        losses: the mean loss by rate; infinite where runs diverged.
    """
    return min(sorted(losses), key=lambda rate: losses[rate])


def at_border(losses: Mapping[float, float]) -> bool:
    """Whether the best tried rate is the lowest or the highest, so that a better one may lie outside.

    Args:
        losses: the mean loss by rate; infinite where runs diverged.
    """
    rates = sorted(losses)
    return best_tried(losses) in (rates[0], rates[-1])


def near_border(losses: Mapping[float, float]) -> bool:
    """Whether the best tried rate is one of the two lowest or highest, where an extended grid ends.

    Args:
        losses: the mean loss by rate; infinite where runs diverged.
    """
    rates = sorted(losses)
    return best_tried(losses) in (*rates[:2], *rates[-2:])


def extension(losses: Mapping[float, float]) -> float:
    """The rate to try next if the best one is at the border: one step outside.

    Raises:
        ValueError: The best rate is not at the border.
    """
    if not at_border(losses):
        raise ValueError("the best rate is not at the border of the grid")
    rates = sorted(losses)
    best = best_tried(losses)
    return best * best / rates[1] if best == rates[0] else best * best / rates[-2]


def equal_steps(rates: tuple[float, ...]) -> float | None:
    """The factor between neighbouring rates; None if they do not ascend in equal factors."""
    factors = [b / a for a, b in pairwise(rates)]
    if not factors or factors[0] <= 1 or any(abs(math.log(f / factors[0])) > 0.02 for f in factors):
        return None
    return factors[0]


def vertex(losses: Mapping[float, float]) -> Parabola:
    """The parabola through the best rate and its two neighbours.

    Args:
        losses: the mean loss by rate.

    Returns:
        The parabola, whose vertex is kept within half a step of the best rate.

    Raises:
        ValueError: The best rate is at the border, or a neighbour's loss is not finite.
    """
    if at_border(losses):
        raise ValueError(
            "the best rate is at the border of the grid, so there is no parabola; extend the grid"
        )
    rates = sorted(losses)
    i = rates.index(best_tried(losses))
    near = rates[i - 1 : i + 2]
    x, y = np.log(near), np.array([losses[rate] for rate in near])
    if not np.isfinite(y).all():
        raise ValueError(
            f"a run beside the best rate {rates[i]:g} diverged, so there is no parabola; refine the grid"
        )
    curvature, slope, offset = np.polyfit(x - x[1], y, 2)
    if curvature <= 0:
        return Parabola(float(x[1]), float(y[1]), 0.0)
    step = float(np.clip(-slope / (2 * curvature), (x[0] - x[1]) / 2, (x[2] - x[1]) / 2))
    return Parabola(float(x[1]) + step, float(offset + slope * step + curvature * step**2), float(curvature))


def ln_vertex(losses: Mapping[float, float]) -> float:
    """ln of the vertex, or of the best rate if a run beside it diverged.

    Raises:
        ValueError: The best rate is at the border.
    """
    try:
        return vertex(losses).ln_rate
    except ValueError:
        if at_border(losses):
            raise
        return math.log(best_tried(losses))


def fitted(losses: Mapping[float, float]) -> Parabola:
    """The parabola near the best point of a random search, by least squares.

    Random points may lie so close to each other that a parabola through the best one and its neighbours
    shows noise alone. Therefore all points up to `WINDOW` from the best one are fitted.

    Args:
        losses: the mean loss by rate.

    Raises:
        ValueError: The best rate is at the border, there are fewer than `FEWEST_FITTED` finite losses in the
            window, or the fitted loss has no lowest point there.
    """
    if at_border(losses):
        raise ValueError("the best rate is the lowest or the highest of those that were drawn")
    best = best_tried(losses)
    near = [r for r in losses if abs(math.log(r / best)) <= WINDOW and math.isfinite(losses[r])]
    if len(near) < FEWEST_FITTED:
        raise ValueError(f"{len(near)} points near the best rate {best:g}; expected {FEWEST_FITTED} or more")
    x = np.log(near) - math.log(best)
    curvature, slope, offset = np.polyfit(x, [losses[rate] for rate in near], 2)
    if curvature <= 0 or not x.min() <= -slope / (2 * curvature) <= x.max():
        raise ValueError(f"the losses near the best rate {best:g} have no lowest point")
    step = float(-slope / (2 * curvature))
    return Parabola(math.log(best) + step, float(offset + slope * step / 2), float(curvature))


def rate_line(best_rates: Mapping[float, float]) -> tuple[float, float] | None:
    """The straight line of ln rate over ln parameters: its slope, and its value at 0.

    Args:
        best_rates: ln of the best rate by ln parameters.

    Returns:
        The line; None with fewer than `FEWEST_ON_LINE` sizes, or if their residuals exceed `STRAIGHT`.
    """
    if len(best_rates) < FEWEST_ON_LINE:
        return None
    x, y = np.array(list(best_rates)), np.array(list(best_rates.values()))
    slope, offset = np.polyfit(x, y, 1)
    rest = y - (slope * x + offset)
    if math.sqrt(float(rest @ rest) / (len(x) - 2)) >= STRAIGHT:
        return None
    return float(slope), float(offset)


def random_gap(
    parabola: Parabola,
    bounds: tuple[float, float],
    points: int,
    *,
    sd: float,
    seeds: int,
    per_token: float,
    studies: int = 20_000,
    generator: int = 0,
) -> float:
    """The standard deviation of the difference between two equal sides that a random search alone causes.

    The rule, the best of n rates that are drawn log-uniformly, is simulated on the fitted parabola with the
    seeds' noise. Each side draws its own points. The sides of a sweep try the same ones, but their best rates
    lie at different places between them, so that their errors are taken to be independent (our choice).

    Args:
        parabola: the fitted parabola, assumed to be the truth.
        bounds: the lowest and the highest rate that may be drawn.
        points: number of points.
        sd: standard deviation of a run's loss, in nats.
        seeds: number of runs per point.
        per_token: decrease of the loss per e-fold of tokens, in nats.
        studies: number of simulated searches.
        generator: seed of the simulation.

    Returns:
        The standard deviation in ln tokens.
    """
    random = np.random.default_rng(generator)
    regrets = np.empty((2, studies))
    for side in range(2):
        x = random.uniform(math.log(bounds[0]), math.log(bounds[1]), (studies, points))
        losses = parabola.curvature * (x - parabola.ln_rate) ** 2
        found = (losses + random.normal(0, sd / math.sqrt(seeds), x.shape)).argmin(1)
        regrets[side] = losses[np.arange(studies), found] / per_token
    return float((regrets[1] - regrets[0]).std())


def tuning_gap(
    parabola: Parabola,
    rates: tuple[float, ...],
    *,
    sd: float,
    seeds: int,
    per_token: float,
    interpolated: bool,
    studies: int = 20_000,
    generator: int = 0,
) -> float:
    """The standard deviation of the difference between two equal sides that tuning alone causes.

    The rule is simulated on the fitted parabola with the seeds' noise.

    Args:
        parabola: the fitted parabola, assumed to be the truth.
        rates: the rates that are tried, ascending.
        sd: standard deviation of a run's loss, in nats.
        seeds: number of runs per point of the grid.
        per_token: decrease of the loss per e-fold of tokens, in nats, which converts nats to ln tokens.
        interpolated: whether the comparison is trained at the vertex, or at the best point.
        studies: number of simulated tunings.
        generator: seed of the simulation.

    Returns:
        The standard deviation in ln tokens.
    """
    random = np.random.default_rng(generator)
    x = np.log(rates)
    best = int(np.abs(x - parabola.ln_rate).argmin().clip(1, len(x) - 2))
    step = (x[best + 1] - x[best - 1]) / 2
    regrets = np.empty((2, studies))
    for side in range(2):
        # The position of the optimum between the points of the grid is unknown, and drawn at random as well.
        centre = parabola.ln_rate + random.uniform(-0.5, 0.5, studies) * step

        def losses(x: Array, centre: Array = centre) -> Array:
            noise: Array = random.normal(0, sd / math.sqrt(seeds), x.shape)
            return parabola.curvature * (x - centre[:, None]) ** 2 + noise

        chosen = chosen_rates(np.tile(x, (studies, 1)), losses, interpolated)
        regrets[side] = parabola.curvature * (chosen - centre) ** 2 / per_token
    return float((regrets[1] - regrets[0]).std())


def chosen_rates(
    x: Array, losses: Callable[[Array], Array], interpolated: bool, extensions: int = 0
) -> Array:
    """Simulate the ln rates that a tuning rule chooses.

    Args:
        x: (studies, points), the grids of ln rates in equal steps.
        losses: a function that returns the losses at an array of ln rates.
        interpolated: whether the rule chooses the vertex of the parabola through the best point and its
            neighbours, kept within half a step; otherwise it chooses the best point.
        extensions: largest number of points that are added while the best point is at the border.

    Returns:
        (studies,) ln rates.
    """
    step = (x[:, 1] - x[:, 0])[:, None]
    beyond = step * np.arange(1, extensions + 1)
    x = np.concatenate([x[:, :1] - beyond[:, ::-1], x, x[:, -1:] + beyond], 1)
    rows = np.arange(len(x))
    first = np.full(len(x), extensions)
    last = np.full(len(x), x.shape[1] - 1 - extensions)
    y = losses(x)
    tried = np.zeros(x.shape, dtype=bool)
    tried[:, extensions : x.shape[1] - extensions] = True
    for _ in range(extensions):
        best = np.where(tried, y, np.inf).argmin(1)
        first, last = first - (best == first), last + (best == last)
        tried[rows, first] = tried[rows, last] = True
    best = np.where(tried, y, np.inf).argmin(1)
    chosen: Array = x[rows, best]
    if not interpolated:
        return chosen
    inner = (best > first) & (best < last)
    middle = best.clip(1, x.shape[1] - 2)
    left, lowest, right = (y[rows, middle + k] for k in (-1, 0, 1))
    bend = left - 2 * lowest + right
    has_vertex = inner & (bend > 0)
    moved = np.where(has_vertex, (left - right) / np.where(bend > 0, 2 * bend, 1), 0.0).clip(-0.5, 0.5)
    vertices: Array = chosen + moved * step[:, 0]
    return vertices
