"""Seeds that a sweep at one size adds until every word is decided, up to a declared maximum.

After every seed the runs are judged as `zoo report` judges them, with the critical values of the maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo.ablate.ladder_plan import LadderPlanner, table_of, undecided
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, Planner, SweepPlan
from zoo.ablate.record import manifest_of
from zoo.ablate.results import Results
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.scale.looks import FIRST_LOOK, Looks
from zoo.ablate.scale.verdict import judge as judge_table
from zoo.ablate.sweep import Sweep
from zoo.ablate.verdict import judge
from zoo.run.config import RunConfig
from zoo.utils.run_folder import RunFolder


def stages(sweep: Sweep) -> dict[str, tuple[int, ...]]:
    """The seeds at the first look and at the declared maximum, by names; without a maximum under "" alone."""
    every = (*sweep.first_seeds, *sweep.added_seeds)
    if sweep.max_seeds is None:
        return {"": every}
    first = max(len(sweep.first_seeds), FIRST_LOOK)
    return {f"{first} seeds, the first look": every[:first], f"{len(every)} seeds, at most": every}


class SeedPlanner:
    """Makes the plans of a sweep with `max_seeds`, from those of the planner of a fixed number of seeds."""

    def __init__(self, sweep: Sweep, planner: Planner | LadderPlanner) -> None:
        """Create the planner without a plan.

        Args:
            sweep: the sweep.
            planner: a planner of the sweep, which can plan for further seeds.
        """
        self._sweep, self._planner = sweep, planner
        self._open: dict[tuple[tuple[str, float | None], ...], bool] = {}

    @property
    def ids(self) -> Sequence[str]:
        """The ids that are known in advance, those of all seeds that may be added included."""
        return self._planner.ids

    @property
    def configs(self) -> Sequence[RunConfig]:
        """The configurations of `Planner.configs` or `LadderPlanner.configs`."""
        return self._planner.configs

    def plan(self, outcomes: Mapping[str, Outcome]) -> SweepPlan:
        """The plan that follows from `outcomes` by id: all sides have the same seeds."""
        first, at_most = (len(seeds) - len(self._sweep.first_seeds) for seeds in stages(self._sweep).values())
        for count in range(first, at_most):
            plan = self._planner.plan(outcomes, self._sweep.added_seeds[:count])
            if not self._goes_on(plan, outcomes):
                return plan
        return self._planner.plan(outcomes, self._sweep.added_seeds)

    def _goes_on(self, plan: SweepPlan, outcomes: Mapping[str, Outcome]) -> bool:
        """Whether one more seed is needed.

        All runs must have ended. If one of them crashed, no seed is added, because the sweep tries that run
        again when it is started the next time.
        """
        states = [(run, outcomes.get(run.id, NOT_STARTED)) for run in plan.runs]
        if not all(run.is_done(outcome) and not outcome.crashed for run, outcome in states):
            return False
        key = tuple((run.id, outcome.loss(run.until)) for run, outcome in states)
        if key not in self._open:  # plans are made twice a second
            self._open[key] = self._is_open(plan, outcomes)
        return self._open[key]

    def _is_open(self, plan: SweepPlan, outcomes: Mapping[str, Outcome]) -> bool:
        """Whether a variant is undecided that further seeds may decide."""
        sweep = self._sweep
        if sweep.scale is None:
            return any(verdict.is_open for verdict in judge(_results(sweep, plan, outcomes)).verdicts)
        compared = {run.variant for run in plan.runs if "final" in run.phases}
        if sweep.baseline not in compared or len(compared) < 2:
            return False  # rates at a border: there is nothing to compare
        # A side at the border keeps its share of alpha, as in the report, although it gets no seeds.
        verdicts = judge_table(
            table_of(sweep, plan.runs, outcomes),
            sweep.baseline,
            margin=sweep.scale.margin,
            looks=Looks(max_seeds=sweep.max_seeds),
            waiting=sweep.variant_names,
        )
        still = [name for name in undecided(verdicts, sweep.baseline) if name in compared]
        left_out = {name: verdicts[name].measured.left_out for name in still}
        return any(not any(size.differs for size in sizes) for sizes in left_out.values())  # none diverged


def _results(sweep: Sweep, plan: SweepPlan, outcomes: Mapping[str, Outcome]) -> Results:
    """The results of a sweep whose runs have ended, as `read_results` reads them from its folder."""
    folders = {run.id: sweep.runs / run.id for run in plan.runs}
    metrics = {
        run: read_run_metrics(folder)
        for run, folder in folders.items()
        if RunFolder(folder).metrics.is_file()
    }
    return Results(manifest_of(sweep, plan, outcomes), metrics, sweep.measure)
