"""Running a sweep: start what is due, record what ended, until nothing is due or someone interrupts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rich.console import Console

from zoo.ablate.live import Display, Row, sight
from zoo.ablate.lock import locked
from zoo.ablate.manifest import Manifest, Run, Status, Tuning, Variant, write_manifest
from zoo.ablate.outcome import Outcome, read_outcome
from zoo.ablate.plan import UNKNOWN, Plan, Planned, Planner
from zoo.ablate.pool import Pool
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import rule
from zoo.ablate.worker import WORKERS
from zoo.run.config import RunConfig
from zoo.run.job import Job
from zoo.train.interrupt import Interrupt
from zoo.utils.errors import DataError

LOCK = ".lock"
REPORTS = "errors"
POLL = 0.5  # seconds between two looks at the runs


@dataclass(frozen=True)
class Result:
    """How a sweep ended.

    Attributes:
        manifest: as it was written last.
        outcomes: of its runs, by id.
        finished: whether nothing is left to do; otherwise it was interrupted.
    """

    manifest: Manifest
    outcomes: Mapping[str, Outcome]
    finished: bool


def execute(sweep: Sweep, workers: int, console: Console | None = None) -> Result:
    """Run what a sweep still needs.

    Runs that have ended are reused, runs that were interrupted go on. A run that fails is recorded
    with its error; it is tried again the next time unless it diverged. Ctrl-C or SIGTERM saves all runs
    and stops.

    Args:
        sweep: from `load_sweep`.
        workers: runs at a time.
        console: where to show the runs; None: silent.

    Raises:
        ConfigError: two runs with one id, or a run folder that was changed by hand.
        DataError: no run can read its data.
        ZooError: another sweep is at work in the same folder.
    """
    planner = Planner(sweep)
    busy = f"{sweep.out}: another `zoo sweep` is at work there; wait for it, or choose another `out`"
    dying = f"{sweep.out}: workers of a sweep that was killed are still at work there; try again soon"
    with locked(sweep.out / LOCK, busy):
        with locked(sweep.out / WORKERS, dying, patience=60):
            outcomes = {run: read_outcome(sweep.runs / run) for run in planner.ids}
        if not any(outcome.ended for outcome in outcomes.values()):
            _check_data(planner.configs)
        pool = Pool(workers, sweep.out, sweep.folder / REPORTS)
        with Interrupt() as interrupt, Display(console, sweep.name) as display:
            try:
                return _Execution(sweep, planner, pool, outcomes, display).loop(interrupt)
            finally:
                pool.stop()


def _check_data(configs: Iterable[RunConfig]) -> None:
    """Refuse a sweep of which no run can read its data; where only some cannot, they fail by themselves."""
    tried: dict[str, DataError] = {}
    for config in configs:
        job = Job.of(config)
        key = job.data.model_dump_json() + job.model.model_dump_json()
        if key in tried:
            continue
        try:
            job.data.prepare(job.model)
        except DataError as error:
            tried[key] = error
        else:
            return
    if tried:
        raise next(iter(tried.values()))


class _Execution:
    """The loop."""

    def __init__(
        self,
        sweep: Sweep,
        planner: Planner,
        pool: Pool,
        outcomes: dict[str, Outcome],
        display: Display,
    ) -> None:
        self._sweep, self._planner, self._pool = sweep, planner, pool
        self._outcomes, self._display = outcomes, display
        self._config_hash = sweep.config_hash
        self._written: Manifest | None = None

    def loop(self, interrupt: Interrupt) -> Result:
        """Until nothing is due; or, once interrupted, until the workers have saved."""
        stopping = False
        while True:
            plan = self._planner.plan(self._outcomes)
            running = self._pool.running
            due = [r for r in plan.runs if r.id not in running and not r.done(self._seen(r))]
            if interrupt.asked and not stopping:
                stopping = True
                self._pool.stop()
            if not stopping:
                for run in due[: self._pool.free]:
                    self._pool.start(run)
            manifest = self._record(plan, stopping)
            if not self._pool.running and (stopping or not due):
                return Result(manifest, self._outcomes, not due)
            for run, error in self._pool.ended(POLL):
                outcome = read_outcome(self._sweep.runs / run.id)
                failed = error is not None and not stopping
                self._outcomes[run.id] = replace(outcome, error=error) if failed else outcome

    def _seen(self, run: Planned) -> Outcome:
        return self._outcomes.get(run.id, UNKNOWN)

    def _record(self, plan: Plan, stopping: bool) -> Manifest:
        """Write the manifest if it has changed, and show the runs."""
        sweep = self._sweep
        runs = tuple(self._run(run, stopping) for run in plan.runs)
        manifest = Manifest(
            name=sweep.name,
            baseline=sweep.baseline,
            config_hash=self._config_hash,
            variants=tuple(self._variant(i, plan) for i in range(len(sweep.contenders))),
            tune=Tuning(keys=tuple(sweep.tune.grid), rule=rule(sweep.tune)) if sweep.tune else None,
            runs=runs,
        )
        if manifest != self._written:
            write_manifest(sweep.folder, manifest)
            self._written = manifest
        self._display.show([self._row(told, run) for told, run in zip(runs, plan.runs, strict=True)])
        return manifest

    def _variant(self, index: int, plan: Plan) -> Variant:
        contender = self._sweep.contenders[index]
        choice = plan.choices.get(contender.name)
        return Variant(
            name=contender.name,
            settings=dict(contender.settings),
            tuned=None if choice is None else dict(contender.points[choice.point]),
            tuned_on_border=() if choice is None else choice.on_border,
        )

    def _run(self, run: Planned, stopping: bool) -> Run:
        return Run(
            id=run.id,
            variant=run.variant,
            seed=run.config.seed,
            phases=run.phases,
            tuned=dict(run.point),
            folder=f"../{self._sweep.runs.name}/{run.id}",
            status=self._status(run, stopping),
            error=self._seen(run).error,
        )

    def _status(self, run: Planned, stopping: bool) -> Status:
        outcome = self._seen(run)
        if run.id in self._pool.running:
            return "running"
        if outcome.error is not None:
            return "failed"
        if outcome.ended:
            return "finished"
        if run.given_up:
            return "stopped"
        return "interrupted" if stopping and outcome.step else "waiting"

    def _row(self, told: Run, run: Planned) -> Row:
        if told.status != "running":
            outcome = self._seen(run)
            return Row(told, run.steps, outcome.step, outcome.losses.get(outcome.step))
        step, loss = sight(self._sweep.runs / run.id)
        return Row(told, run.steps, step, loss)
