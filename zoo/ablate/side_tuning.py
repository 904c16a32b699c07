"""The tuning of a variant at one size: the points that it needs, and the one that it chooses.

A grid of two keys is tuned in turn: the first key, which is the learning rate, then the second one at the
rate's vertex, then three rates about that vertex with the second key fixed. A grid of all combinations would
need as many runs as both grids multiplied. A random search takes the best of its points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from zoo.ablate.rate_search import RateSearch, around, bracket, chosen_rate, rounded, search
from zoo.ablate.tuning import ChosenPoint, Point, best_point, on_border, survivors

Loss = Callable[[Point, int], float | None]
"""The mean loss of a point at a rung, the last of which is the end of a run; None if it is not known yet."""
Grids = Mapping[str, Sequence[float]]
"""The values to try by key, ascending by equal factors; the first key is the learning rate."""


@dataclass(frozen=True)
class TriedPoint:
    """A point of the tuning that is trained: a value for every tuned key.

    Attributes:
        point: a value for every tuned key.
        until: the index of the rung up to which it is trained.
        dropped: whether halving has stopped it there.
    """

    point: Point
    until: int
    dropped: bool = False


@dataclass(frozen=True)
class SideTuning:
    """The state of the tuning of a variant at one size.

    Attributes:
        trials: the points to train, in the order of their selection.
        chosen: the point of the comparison; None while losses are missing.
        ln_best: ln of the best value by key, from which later sizes follow; empty unless a grid's tuning has
            ended, and not at a border.
    """

    trials: tuple[TriedPoint, ...]
    chosen: ChosenPoint | None = None
    ln_best: Mapping[str, float] = field(default_factory=dict)


def tune_in_turn(
    grids: Grids,
    best: Mapping[str, Mapping[float, float]],
    ln_params: float,
    rungs: int,
    loss: Loss,
    keep: float = 1.0,
) -> SideTuning:
    """Tune one key, or two of them in turn.

    Every key follows the same rule over the sizes: the whole grid at the smallest ones, then three values
    about the line through them (`bracket`); the comparison is trained on the line if it is straight, else at
    the vertex (`chosen_rate`). While the rate is tuned for the first time, the second key has the middle one
    of the values that it is tried at. It is then fixed at its value in the comparison; if that is the middle
    one again, the rate has been tuned there, and is not tuned twice.

    Args:
        grids: the grids of the smallest sizes.
        best: ln of the best value of every key by ln of the number of parameters, at the sizes tuned so far.
        ln_params: ln of the number of parameters of this size.
        rungs: number of rungs.
        loss: the losses known so far.
        keep: the share of the rates that continues after each early rung, see `search`.
    """
    starts = {key: bracket(grid, best.get(key, {}), ln_params) for key, grid in grids.items()}
    point = {key: start[len(start) // 2] for key, start in starts.items()}
    trials: list[TriedPoint] = []
    ln_best: dict[str, float] = {}
    rate = next(iter(grids))

    def on_line(key: str) -> float:
        return chosen_rate({**best.get(key, {}), ln_params: ln_best[key]}, ln_params)

    first = dict(point)
    for key in turns(tuple(grids)):
        if key in ln_best and all(point[other] == first[other] for other in grids if other != key):
            break
        start = around(ln_best[key], grids[key]) if key in ln_best else starts[key]
        result = _searched(key, start, point, rungs, loss, keep, trials)
        if result.at_border:
            return SideTuning(tuple(trials), ChosenPoint({}, (key,)))
        if result.ln_best is None:
            return SideTuning(tuple(trials))
        ln_best[key] = result.ln_best
        point[key] = rounded(math.exp(result.ln_best)) if key == rate else on_line(key)
    return SideTuning(tuple(trials), ChosenPoint({key: on_line(key) for key in grids}, ()), ln_best)


def turns(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys in the order in which they are tuned; with a second key, the first one is tuned again."""
    rate, *others = keys
    return (rate, *others, rate) if others else (rate,)


def _searched(
    key: str,
    start: Sequence[float],
    point: Mapping[str, float],
    rungs: int,
    loss: Loss,
    keep: float,
    trials: list[TriedPoint],
) -> RateSearch:
    """Search over one key while the others are fixed, and add the points to train to `trials`."""

    def at(value: float) -> Point:
        return {**point, key: value}

    def known(rung: int, value: float) -> float | None:
        return loss(at(value), rung)

    result = search(start, *(partial(known, rung) for rung in range(rungs)), keep=keep)
    trials += [TriedPoint(at(rate), result.until[rate], rate in result.dropped) for rate in result.rates]
    return result


def tune_at_random(points: Sequence[Point], rungs: int, loss: Loss, keep: float = 1.0) -> SideTuning:
    """Take the best of the points of a random search.

    A best point with the lowest or the highest of the drawn values of a key is one at the border: a better
    one may lie outside, as with a grid, and no points are added.

    Args:
        points: the points that were drawn for this size.
        rungs: number of rungs.
        loss: the losses known so far.
        keep: the share of the points that continues after each early rung, rounded up.
    """
    alive = list(range(len(points)))
    trials = [TriedPoint(point, 0) for point in points]
    for rung in range(rungs):
        for i in alive:
            trials[i] = TriedPoint(points[i], rung)
        known = [loss(points[i], rung) for i in alive]
        losses = [(value,) for value in known if value is not None]
        if len(losses) < len(alive):
            return SideTuning(tuple(trials))
        if rung < rungs - 1:
            kept = {alive[k] for k in survivors(losses, keep)}
            for i in set(alive) - kept:
                trials[i] = TriedPoint(points[i], rung, dropped=True)
            alive = [i for i in alive if i in kept]
    best = points[alive[best_point(losses)]]
    border = on_border(best, points)
    return SideTuning(tuple(trials), ChosenPoint({} if border else best, border))
