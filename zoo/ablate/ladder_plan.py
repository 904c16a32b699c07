"""The runs that a ladder needs, given the state of all runs: small sizes first, each tuned, then compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import TypeVar

from zoo.ablate.ladder import LadderSize, Side
from zoo.ablate.manifest import Phase
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun, SweepPlan
from zoo.ablate.rate_search import bracket, chosen_rate, search
from zoo.ablate.scale.line import FEWEST_SIZES
from zoo.ablate.scale.looks import Looks
from zoo.ablate.scale.runs import AGAIN, FinishedRun, RunTable
from zoo.ablate.scale.verdict import ScaleVerdict, judge
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import ChosenPoint
from zoo.config.registry import Config
from zoo.run.config import RunConfig
from zoo.run.job import Job


class LadderPlanner:
    """Makes the plans of a sweep whose learning rates are computed: a ladder, or a parabola at one size."""

    ids: Sequence[str] = ()
    """The ids that are known in advance: none, because learning rates are computed from losses."""

    def __init__(self, sweep: Sweep) -> None:
        """Create the planner without a plan."""
        self._sweep = sweep
        self._key = sweep.tune.keys[0] if sweep.tune else None
        self._named: dict[tuple[str, int, int, int, float | None], RunConfig] = {}

    @property
    def configs(self) -> list[RunConfig]:
        """A configuration of every variant at every size."""
        return [side.config for size in self._sweep.ladder for side in size.sides]

    def plan(self, outcomes: Mapping[str, Outcome], added: Sequence[int] = ()) -> SweepPlan:
        """The plan that follows from the outcomes.

        Args:
            outcomes: outcomes by id.
            added: seeds of the comparison besides those of the sweep, at every size.
        """
        runs: dict[str, PlannedRun] = {}
        chosen: dict[str, ChosenPoint] = {}
        best_rates: dict[str, dict[float, float]] = {}
        for number, size in enumerate(self._sweep.ladder, 1):
            tuned = True
            for side in size.sides:
                choice = self._tune(size, side, best_rates.setdefault(side.variant, {}), outcomes, runs)
                tuned = tuned and choice is not None
                if choice is None:
                    continue
                chosen[side.variant] = choice
                if not choice.on_border:
                    self._compare(size, side, choice, (*size.seeds, *added), runs)
            if not tuned or not self._goes_on(number, runs, outcomes):
                break
        return SweepPlan(tuple(runs.values()), chosen)

    def _tune(
        self,
        size: LadderSize,
        side: Side,
        best_rates: dict[float, float],
        outcomes: Mapping[str, Outcome],
        runs: dict[str, PlannedRun],
    ) -> ChosenPoint | None:
        """Add the tuning runs that are needed now; return the chosen value once all have results."""
        tune = self._sweep.tune
        if tune is None or self._key is None:
            return ChosenPoint({}, ())
        ln_params = math.log(side.params)  # not the baseline's: a side has one line in every ladder

        rungs = side.rungs(size.tuning_tokens, tune.halving)

        def trained(rate: float, rung: int) -> list[PlannedRun]:
            runs = [self._run(size, side, size.tuning_tokens, seed, rate, "tune") for seed in tune.seeds]
            return [replace(run, until=rungs[rung]) for run in runs]

        def loss_at(rung: int) -> Callable[[float], float | None]:
            def loss(rate: float) -> float | None:
                known = [run.loss(outcomes.get(run.id, NOT_STARTED)) for run in trained(rate, rung)]
                return mean(v for v in known if v is not None) if None not in known else None

            return loss

        keep = tune.halving.keep if tune.halving else 1.0
        start = bracket(side.rates, best_rates, ln_params)
        result = search(start, *map(loss_at, range(len(rungs))), keep=keep)
        for rate in result.rates:
            planned = trained(rate, result.until[rate])
            runs.update({run.id: replace(run, stopped_early=rate in result.dropped) for run in planned})
        if result.at_border:
            return ChosenPoint({}, (self._key,))
        if result.ln_best is None:
            return None
        best_rates[ln_params] = result.ln_best
        return ChosenPoint({self._key: chosen_rate(best_rates, ln_params)}, ())

    def _compare(
        self,
        size: LadderSize,
        side: Side,
        choice: ChosenPoint,
        seeds: Sequence[int],
        runs: dict[str, PlannedRun],
    ) -> None:
        """Add the runs of the comparison."""
        rate = next(iter(choice.values.values()), None)
        for tokens in reversed(size.budgets) if size.branches else size.budgets:
            for seed in seeds:
                run = self._run(size, side, tokens, seed, rate, "final")
                if size.branches:
                    trunk = self._run(size, side, size.budgets[-1], seed, rate, "final").id
                    run = replace(run, trunk=trunk, begins=size.shared_steps(side, tokens))
                phases = runs[run.id].phases if run.id in runs else ()
                runs[run.id] = replace(run, phases=(*phases, *run.phases))

    def _goes_on(self, sizes: int, runs: Mapping[str, PlannedRun], outcomes: Mapping[str, Outcome]) -> bool:
        """Whether the next size is needed; if this depends on the verdict, all runs must have ended."""
        scale = self._sweep.scale
        if scale is None or not scale.until_decided or sizes < FEWEST_SIZES:
            return True
        states = [(run, outcomes.get(run.id, NOT_STARTED)) for run in runs.values()]
        if not all(run.is_done(outcome) for run, outcome in states):
            return False
        declared = tuple(float(size.params) for size in self._sweep.ladder)
        verdicts = judge(
            table_of(runs.values(), outcomes),
            self._sweep.baseline,
            margin=scale.margin,
            looks=Looks(sizes=declared),
        )
        return bool(undecided(verdicts, self._sweep.baseline))

    def _run(
        self, size: LadderSize, side: Side, tokens: int, seed: int, rate: float | None, phase: Phase
    ) -> PlannedRun:
        steps = side.steps(tokens)
        key = (side.variant, size.params, steps, seed, rate)
        if key not in self._named:
            train = Job.of(side.config).train.model_copy(update={"steps": steps})
            config = side.config.model_copy(update={"train": train, "seed": seed + side.first_seed})
            if rate is not None and self._key is not None:
                config = with_value(config, self._key.split("."), rate)
            self._named[key] = self._sweep.named(config)
        point = {} if rate is None or self._key is None else {self._key: rate}
        config = self._named[key]
        return PlannedRun(
            config, side.variant, point, steps, steps, (phase,), params=size.params, tokens=tokens
        )


def table_of(runs: Iterable[PlannedRun], outcomes: Mapping[str, Outcome]) -> RunTable:
    """The runs of a ladder that have ended, as `sweep_table` reads them from the folder of the sweep."""
    states = [(run, outcomes.get(run.id, NOT_STARTED)) for run in runs]
    return RunTable(
        tuple(
            FinishedRun(
                run.variant,
                float(run.params),
                float(run.tokens),
                run.config.seed,
                outcome.loss(run.steps) or math.inf,
                run.key[-1],
                trunk=run.trunk,
                tuning="tune" in run.phases,
            )
            for run, outcome in states
            if outcome.ended and not outcome.crashed
        )
    )


def undecided(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> list[str]:
    """The variants that more runs may decide; a copy of the baseline is hoped to stay undecided."""
    return [name for name, verdict in verdicts.items() if verdict.is_open and name != baseline + AGAIN]


ConfigT = TypeVar("ConfigT", bound=Config)


def with_value(config: ConfigT, keys: Sequence[str], value: object) -> ConfigT:
    """A configuration with one value replaced, which lies under nested keys."""
    if len(keys) > 1:
        value = with_value(getattr(config, keys[0]), keys[1:], value)
    return config.model_copy(update={keys[0]: value})
