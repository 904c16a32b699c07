"""The amount of training in a sweep, as far as it is known before the first run."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise

from zoo.ablate.config import Tune
from zoo.ablate.ladder import LadderSize, Side
from zoo.ablate.rate_search import BRACKET, FULL_GRIDS
from zoo.ablate.scale.tuning import MOST_EXTENSIONS
from zoo.ablate.side_tuning import turns
from zoo.ablate.variants import SweepVariant


def of_variant(variant: SweepVariant, tune: Tune | None, seeds: Collection[int]) -> tuple[int, int]:
    """The numbers of runs and steps of a variant, in the tuning (while points survive) and the comparison."""
    if tune is None:
        return len(seeds), len(seeds) * variant.steps
    points, steps = len(variant.points), 0
    for before, rung in pairwise((0, *variant.rungs)):
        steps += points * (rung - before) * len(tune.seeds)
        points = math.ceil(points * tune.halving.keep) if tune.halving else points
    more = len({*seeds} - {*tune.seeds})
    return len(variant.points) * len(tune.seeds) + more, steps + more * variant.steps


def of_size(size: LadderSize, index: int, tune: Tune | None) -> tuple[int, int, float]:
    """The numbers of runs in the comparison and in the tuning at a size of a ladder, and the tokens of both.

    Points that tuning adds beyond a border are not counted, and steps that branches share are counted once.

    Args:
        size: the size.
        index: number of smaller sizes.
        tune: the tuning.
    """
    runs, tuning, tokens = 0, 0, 0.0
    for side in size.sides:
        runs += len(size.budgets) * len(size.seeds)
        compared = sum(size.budgets) - sum(size.shared(side, budget) for budget in size.budgets)
        tokens += side.planted * compared * len(size.seeds)
        if tune is not None:
            points = points_of_side(side, index, tune)
            tuning += points * len(tune.seeds)
            tokens += side.planted * size.tuning_tokens * points * len(tune.seeds)
    return runs, tuning, tokens


def points_of_side(side: Side, index: int, tune: Tune) -> int:
    """The number of points that the tuning of a variant tries at a size, without those beyond a border.

    Args:
        side: the variant at this size.
        index: number of smaller sizes.
        tune: the tuning.
    """
    if tune.random is not None:
        return len(side.points)
    seen: set[str] = set()
    points = 0
    for key in turns(tune.keys):
        whole_grid = index < FULL_GRIDS and key not in seen
        points += len(side.grids((key,))[key]) if whole_grid else BRACKET
        seen.add(key)
    return points


def most_added(ladder: Sequence[LadderSize], tune: Tune | None) -> int:
    """The largest number of runs that the tuning of a ladder adds beyond borders."""
    if tune is None or tune.random is not None:
        return 0
    searches = sum(len(size.sides) for size in ladder) * len(turns(tune.keys))
    return searches * MOST_EXTENSIONS * len(tune.seeds)
