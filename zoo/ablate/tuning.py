"""Tuning: the points of a grid, when points are given up, and which is chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any

from zoo.ablate.config import Halving, Tune

Point = Mapping[str, Any]
"""A value for every tuned key."""


def points(grid: Mapping[str, Sequence[Any]]) -> tuple[Point, ...]:
    """Every combination of a grid's values; one empty point if there are no keys."""
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def rungs(halving: Halving | None, steps: int, eval_every: int) -> tuple[int, ...]:
    """The steps at which points are compared, the last one included.

    Args:
        halving: None to train every point to the end.
        steps: of a whole run.
        eval_every: steps between validations; points are compared at the last one before a share.

    Raises:
        ValueError: two comparisons fall on one step, or there is no validation before the first.
    """
    shares = halving.at if halving else ()
    cuts = [int(share * steps) // eval_every * eval_every for share in shares]
    found = (*cuts, steps)
    if cuts and (cuts[0] == 0 or len(set(found)) < len(found)):
        raise ValueError(
            f"halving at {list(shares)} of {steps} steps: with train.eval_every {eval_every} there is no "
            "validation of its own before each; expected fewer steps between validations"
        )
    return found


def survivors(losses: Sequence[Sequence[float]], keep: float) -> list[int]:
    """Which points go on.

    Args:
        losses: of every point, by seed; infinite where a run failed.
        keep: share that goes on, rounded up.

    Returns:
        Their indices, in the order of the grid.
    """
    return sorted(_ranked(losses)[: math.ceil(keep * len(losses))])


def best(losses: Sequence[Sequence[float]]) -> int:
    """The point with the lowest mean loss; of several, the first in the grid."""
    return _ranked(losses)[0]


def on_border(point: Point, grid: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """The keys whose value is the lowest or highest number of the grid: a better one may lie beyond."""
    numbers = {
        key: values
        for key, values in grid.items()
        if len(values) > 1 and all(type(v) in (int, float) for v in values)
    }
    return tuple(key for key, values in numbers.items() if point[key] in (min(values), max(values)))


def rule(tune: Tune) -> str:
    """What is done, in words."""
    count = math.prod(map(len, tune.grid.values()))
    seeds = f"seed{'s' * (len(tune.seeds) > 1)} {', '.join(map(str, tune.seeds))}"
    text = (
        f"{' x '.join(tune.grid)}, {count} points per variant with {seeds}: the lowest mean of the final "
        "validation loss over these seeds; a failed or diverged run counts as infinite, of equals the first "
        "in the grid is taken"
    )
    if tune.grids:
        others = "; ".join(", ".join(f"{a} {v}" for a, v in other.where.items()) for other in tune.grids)
        text += f"; other values, equally many, for {others}"
    if tune.halving:
        shares = ", ".join(f"{share:g}" for share in tune.halving.at)
        text += f"; after {shares} of the steps only the best {tune.halving.keep:g} of the points go on"
    return text


@dataclass(frozen=True)
class Choice:
    """What tuning chose for a variant.

    Attributes:
        point: index into the grid's points.
        on_border: see `on_border`.
    """

    point: int
    on_border: tuple[str, ...]


def _ranked(losses: Sequence[Sequence[float]]) -> list[int]:
    return sorted(range(len(losses)), key=lambda i: (mean(losses[i]), i))
