"""The tokens of a ladder that need no more training, out of those that `of_size` counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zoo.ablate.amount import points_of_side
from zoo.ablate.execute import planner_of, settled_plan
from zoo.ablate.ladder import Side
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun
from zoo.ablate.sweep import Sweep


def known_runs(sweep: Sweep, outcomes: dict[str, Outcome]) -> list[PlannedRun]:
    """The runs that each side of a ladder needs, as far as they are known.

    A sweep plans a size once all sides are tuned at the smaller ones. What a side needs depends on its own
    losses alone, so that each side is planned by itself here: lines that are taken over from another ladder
    (`lines_of`) thus count at sizes that the sweep has not reached.

    Args:
        sweep: a ladder; with `until_decided` all of its sizes count, as in `of_size`.
        outcomes: outcomes by id, to which those that are read are added.
    """
    runs: list[PlannedRun] = []
    for side in sweep.ladder[0].sides:
        alone = _alone(sweep, side.variant)
        runs += settled_plan(alone, planner_of(alone), outcomes).runs
    return runs


def _alone(sweep: Sweep, variant: str) -> Sweep:
    """The ladder with one of its sides, all sizes of which are planned."""
    scale = None if sweep.scale is None else sweep.scale.model_copy(update={"until_decided": False})
    sizes = [
        replace(size, sides=tuple(side for side in size.sides if side.variant == variant))
        for size in sweep.ladder
    ]
    return replace(sweep, ladder=tuple(sizes), scale=scale)


def trained_tokens(
    sweep: Sweep, index: int, runs: Sequence[PlannedRun], outcomes: Mapping[str, Outcome]
) -> float:
    """The tokens at a size that need no more training, counted as `of_size` counts those of all runs.

    A run of the tuning and of the comparison counts in both, and points that tuning has added beyond a border
    count in neither.

    Args:
        sweep: the ladder.
        index: number of smaller sizes.
        runs: the runs of the ladder, from `known_runs`.
        outcomes: outcomes by id.
    """
    size = sweep.ladder[index]
    total = 0.0
    for side in size.sides:
        here = [run for run in runs if (run.params, run.variant) == (size.params, side.variant)]
        compared = [run for run in here if "final" in run.phases]
        for run in compared:
            shared = run.begins * side.per_step
            total += max(0.0, _trained(run, side, outcomes) - shared)
        if sweep.tune is None:
            continue
        count = points_of_side(side, index, sweep.tune) * len(sweep.tune.seeds)
        if compared:  # the tuning has ended
            total += count * size.tuning_tokens * side.planted
        else:
            tuning = [run for run in here if "tune" in run.phases][:count]
            total += sum(_trained(run, side, outcomes) for run in tuning)
    return total


def _trained(run: PlannedRun, side: Side, outcomes: Mapping[str, Outcome]) -> float:
    """The trained tokens of a run; all of them if it has ended, maybe before its last step."""
    outcome = outcomes.get(run.id, NOT_STARTED)
    share = 1.0 if outcome.ended else min(outcome.step, run.steps) / run.steps
    return share * run.tokens * side.planted
