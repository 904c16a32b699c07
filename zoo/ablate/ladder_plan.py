"""The runs that a ladder needs, given the state of all runs: small sizes first, each tuned, then compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from zoo.ablate.ladder import LadderSize, Side
from zoo.ablate.lines import tuned_values
from zoo.ablate.manifest import Phase
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun, SweepPlan, add_planned
from zoo.ablate.scale.line import FEWEST_SIZES
from zoo.ablate.scale.looks import Looks
from zoo.ablate.scale.runs import AGAIN, FinishedRun, RunTable
from zoo.ablate.scale.verdict import ScaleVerdict, judge
from zoo.ablate.side_tuning import tune_at_random, tune_in_turn
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import ChosenPoint, Point
from zoo.run.config import RunConfig, with_value
from zoo.run.job import Job


class LadderPlanner:
    """Makes the plans of a sweep whose learning rates are computed: a ladder, or a parabola at one size."""

    ids: Sequence[str] = ()
    """The ids that are known in advance: none, because learning rates are computed from losses."""

    def __init__(self, sweep: Sweep) -> None:
        """Create the planner without a plan."""
        self._sweep = sweep
        self._named: dict[tuple[object, ...], RunConfig] = {}

    @property
    def configs(self) -> list[RunConfig]:
        """A configuration of every variant at every size."""
        return [side.config for size in self._sweep.ladder for side in size.sides]

    def plan(self, outcomes: Mapping[str, Outcome], added: Sequence[int] = ()) -> SweepPlan:
        """The plan that follows from the outcomes.

        For each side the next size follows when the side is tuned at this one, whose best rates the next
        grid begins with. Where the verdict decides about the next size, all sides go there together.

        Args:
            outcomes: outcomes by id.
            added: seeds of the comparison besides those of the sweep, at every size.
        """
        runs: dict[str, PlannedRun] = {}
        chosen: dict[str, ChosenPoint] = {}
        best: dict[str, dict[str, dict[float, float]]] = {}
        late: set[str] = set()
        for number, size in enumerate(self._sweep.ladder, 1):
            for side in size.sides:
                if side.variant in late:
                    continue
                choice = self._tune(size, side, best.setdefault(side.variant, {}), outcomes, runs)
                if choice is None:
                    late.add(side.variant)
                    continue
                chosen[side.variant] = choice
                if not choice.on_border:
                    self._compare(size, side, choice, (*size.seeds, *added), runs)
            if not self._goes_on(number, runs, outcomes, late):
                break
        return SweepPlan(tuple(runs.values()), chosen)

    def _tune(
        self,
        size: LadderSize,
        side: Side,
        best: dict[str, dict[float, float]],
        outcomes: Mapping[str, Outcome],
        runs: dict[str, PlannedRun],
    ) -> ChosenPoint | None:
        """Add the tuning runs that are needed now; return the chosen point once all have results."""
        tune = self._sweep.tune
        if tune is None:
            return ChosenPoint({}, ())
        ln_params = math.log(side.params)  # not the baseline's: a side has one line in every ladder
        rungs = side.rungs(size.tuning_tokens, tune.halving)

        def trained(point: Point, rung: int) -> list[PlannedRun]:
            runs = [self._run(size, side, size.tuning_tokens, seed, point, "tune") for seed in tune.seeds]
            return [replace(run, until=rungs[rung]) for run in runs]

        def loss(point: Point, rung: int) -> float | None:
            known = [run.loss(outcomes.get(run.id, NOT_STARTED)) for run in trained(point, rung)]
            return mean(v for v in known if v is not None) if None not in known else None

        keep = tune.halving.keep if tune.halving else 1.0
        if tune.random is not None:
            tuning = tune_at_random(side.points, len(rungs), loss, keep)
        else:
            tuning = tune_in_turn(side.grids(tune.keys), best, ln_params, len(rungs), loss, keep)
        for trial in tuning.trials:
            for run in trained(trial.point, trial.until):
                runs[run.id] = replace(run, stopped_early=trial.dropped)
        for key, ln_value in tuning.ln_best.items():
            best.setdefault(key, {})[ln_params] = ln_value
        return tuning.chosen

    def _compare(
        self,
        size: LadderSize,
        side: Side,
        choice: ChosenPoint,
        seeds: Sequence[int],
        runs: dict[str, PlannedRun],
    ) -> None:
        """Add the runs of the comparison."""
        point = choice.values
        for tokens in reversed(size.budgets) if size.branches else size.budgets:
            for seed in seeds:
                run = self._run(size, side, tokens, seed, point, "final")
                if size.branches:
                    trunk = self._run(size, side, size.budgets[-1], seed, point, "final").id
                    run = replace(run, trunk=trunk, begins=size.shared_steps(side, tokens))
                add_planned(runs, run)

    def _goes_on(
        self,
        sizes: int,
        runs: Mapping[str, PlannedRun],
        outcomes: Mapping[str, Outcome],
        late: Collection[str],
    ) -> bool:
        """Whether the next size is needed; if this depends on the verdict, all runs must have ended."""
        scale = self._sweep.scale
        if scale is None or not scale.until_decided:
            return True
        if late or sizes < FEWEST_SIZES:
            return not late
        states = [(run, outcomes.get(run.id, NOT_STARTED)) for run in runs.values()]
        if not all(run.is_done(outcome) for run, outcome in states):
            return False
        declared = tuple(float(size.params) for size in self._sweep.ladder)
        verdicts = judge(
            table_of(self._sweep, runs.values(), outcomes),
            self._sweep.baseline,
            margin=scale.margin,
            looks=Looks(sizes=declared),
            waiting=self._sweep.variant_names,
        )
        return bool(undecided(verdicts, self._sweep.baseline))

    def _run(
        self, size: LadderSize, side: Side, tokens: int, seed: int, point: Point, phase: Phase
    ) -> PlannedRun:
        steps = side.steps(tokens)
        key = (side.variant, size.params, steps, seed, *point.values())
        if key not in self._named:
            train = Job.of(side.config).train.model_copy(update={"steps": steps})
            config = side.config.model_copy(update={"train": train, "seed": seed + side.first_seed})
            for name, value in point.items():
                config = with_value(config, name.split("."), value)
            self._named[key] = self._sweep.named(config)
        config = self._named[key]
        return PlannedRun(
            config, side.variant, point, steps, steps, (phase,), params=size.params, tokens=tokens
        )


def table_of(sweep: Sweep, runs: Iterable[PlannedRun], outcomes: Mapping[str, Outcome]) -> RunTable:
    """The runs of a ladder that have ended, as `sweep_table` reads them from the folder of the sweep."""
    states = [(run, outcomes.get(run.id, NOT_STARTED)) for run in runs]
    known = [(run, outcome) for run, outcome in states if outcome.ended and not outcome.crashed]
    sides = {(run.variant, run.params) for run, _ in known}
    known += [
        (run, outcome)
        for run, outcome in states
        if run.stopped_early and not (outcome.ended or outcome.error) and (run.variant, run.params) in sides
    ]
    drawn = sweep.tune.drawn if sweep.tune else None
    rows = tuple(_row(run, outcome, drawn) for run, outcome in known)
    return RunTable(rows, loss=sweep.measure, by_parabola=True)


def _row(run: PlannedRun, outcome: Outcome, drawn: tuple[float, float] | None) -> FinishedRun:
    rate, second_key = tuned_values(run.point)
    return FinishedRun(
        run.variant,
        float(run.params),
        float(run.tokens),
        run.config.seed,
        outcome.loss(run.steps) or math.inf,
        rate,
        second_key=second_key,
        drawn=drawn,
        trunk=run.trunk,
        tuning="tune" in run.phases,
        final="final" in run.phases,
        stopped=not outcome.ended,
    )


def undecided(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> list[str]:
    """The variants that more runs may decide; a copy of the baseline is hoped to stay undecided."""
    return [name for name, verdict in verdicts.items() if verdict.is_open and name != baseline + AGAIN]
