"""Tuning: the points of a grid, early stopping of points, and the choice of a point."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean

from zoo.ablate.config import Halving, RandomSearch, Range, Tune
from zoo.utils.measures import CROSS_ENTROPY, Measure
from zoo.utils.untyped import Json

Point = Mapping[str, Json]
"""A point: a value for every tuned key."""


@dataclass(frozen=True)
class ChosenPoint:
    """The point that tuning chose for a variant.

    Attributes:
        values: values of the tuned keys; empty if nothing is tuned, or if a search ended at a border.
        on_border: the keys whose value is the lowest or highest that was tried, see `on_border`.
    """

    values: Point
    on_border: tuple[str, ...]


def grid_points(grid: Mapping[str, Sequence[Json]]) -> tuple[Point, ...]:
    """All combinations of a grid's values; one empty point if there are no keys."""
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def random_points(search: RandomSearch, size: int = 0) -> tuple[Point, ...]:
    """The points of a random search; more trials or another key do not change the other values.

    Args:
        search: the settings of the search.
        size: the place of a ladder's size in the file, from 0; every size has points of its own.
    """
    columns = {
        key: _draw(values, search.trials, random.Random(f"{search.seed} {key}{f' {size}' if size else ''}"))
        for key, values in search.ranges.items()
    }
    return tuple({key: column[i] for key, column in columns.items()} for i in range(search.trials))


def _draw(values: Range, count: int, generator: random.Random) -> list[float]:
    """Independent random numbers, rounded to the four digits that a name shows."""
    low, high = values.bounds
    if values.log_uniform:
        drawn = [low * (high / low) ** generator.random() for _ in range(count)]
    else:
        drawn = [low + (high - low) * generator.random() for _ in range(count)]
    return [min(max(float(f"{value:.4g}"), low), high) for value in drawn]


def rung_steps(halving: Halving | None, steps: int, eval_every: int) -> tuple[int, ...]:
    """The steps at which points are compared, the last step included.

    Args:
        halving: the settings of halving; None: every point is trained to the end.
        steps: the number of steps of a whole run.
        eval_every: steps between validations; points are compared at the last validation before a share.

    Raises:
        ValueError: Two comparisons fall on one step, or there is no validation before the first.
    """
    shares = halving.at if halving else ()
    rungs = [*(int(share * steps) // eval_every * eval_every for share in shares), steps]
    if rungs[0] == 0 or len(set(rungs)) < len(rungs):
        raise ValueError(
            f"halving at {list(shares)} of {steps} steps: with train.eval_every {eval_every} there is no "
            "validation of its own before each; expected fewer steps between validations"
        )
    return tuple(rungs)


def survivors(losses: Sequence[Sequence[float]], keep: float) -> list[int]:
    """The indices of the points that continue, in the order of the grid.

    Args:
        losses: losses of every point, by seed; infinite if a run diverged.
        keep: the share of the points that continues, rounded up.
    """
    return sorted(_ranking(losses)[: math.ceil(keep * len(losses))])


def best_point(losses: Sequence[Sequence[float]]) -> int:
    """The index of the point with the lowest mean loss; among equals, the first in the grid."""
    return _ranking(losses)[0]


def on_border(point: Point, points: Sequence[Point]) -> tuple[str, ...]:
    """The keys whose value is the lowest or highest tried number, so that a better one may lie outside."""
    tried = {key: {other[key] for other in points} for key in point}
    numeric = {
        key: values
        for key, values in tried.items()
        if len(values) > 1 and all(type(v) in (int, float) for v in values)
    }
    return tuple(key for key, values in numeric.items() if point[key] in (min(values), max(values)))


def describe_rule(tune: Tune, measure: Measure = CROSS_ENTROPY) -> str:
    """The rule by which points are chosen, in words.

    Args:
        tune: the settings of the tuning.
        measure: the measure by which the runs are compared.
    """
    if tune.random is None and tune.choose == "parabola" and len(tune.keys) > 1:
        rate, second = tune.keys
        tried = f"{rate}, then {second} at its vertex, then three values of {rate} about it"
    elif tune.random is None:
        count = math.prod(len(values) for values in (tune.grid or {}).values())
        tried = f"{' x '.join(tune.keys)}, {count} points per variant"
    else:
        ranges = ", ".join(f"{key} ({values})" for key, values in tune.random.ranges.items())
        tried = (
            f"{ranges}, {tune.random.trials} points drawn with seed {tune.random.seed}, the same for every "
            "variant, trained"
        )
    seeds = f"seed{'s' * (len(tune.seeds) > 1)} {', '.join(map(str, tune.seeds))}"
    final = measure.title if measure.is_task else f"validation {measure.title}"
    text = (
        f"{tried} with {seeds}: the {'lowest' if measure.lower_is_better else 'highest'} mean of the final "
        f"{final} over these seeds; a diverged run counts as "
        f"{'infinite' if measure.lower_is_better else 'the worst'}, of equals the first is taken"
    )
    if tune.grids:
        others = "; ".join(", ".join(f"{a} {v}" for a, v in other.where.items()) for other in tune.grids)
        text += f"; other values, equally many, for {others}"
    if tune.choose == "parabola":
        text += (
            "; the comparison is at the vertex of the parabola through the best point and its neighbours"
            ", and points are added while the best one is at the border"
        )
    if tune.halving:
        shares = ", ".join(f"{share:g}" for share in tune.halving.at)
        text += f"; after {shares} of the steps only the best {tune.halving.keep:g} of the points go on"
        text += ", and always the best one with its neighbours" * (tune.choose == "parabola")
    return text


def _ranking(losses: Sequence[Sequence[float]]) -> list[int]:
    return sorted(range(len(losses)), key=lambda i: (mean(losses[i]), i))
