"""Running a sweep: start the runs that are due and record their results, until none is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from zoo.ablate.added_seeds import SeedPlanner
from zoo.ablate.earlier import replaced_runs
from zoo.ablate.ladder_plan import LadderPlanner
from zoo.ablate.live import Display, RunProgress, read_progress
from zoo.ablate.manifest import Manifest, Run, write_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun, Planner, SweepPlan
from zoo.ablate.pool import Pool
from zoo.ablate.record import manifest_of
from zoo.ablate.sweep import Sweep
from zoo.ablate.worker import WORKER_LOCK
from zoo.data.dataset import Dataset
from zoo.run.config import RunConfig
from zoo.run.job import Job
from zoo.run.located import located
from zoo.train.interrupt import Interrupt
from zoo.utils.atomic import require_file
from zoo.utils.errors import ConfigError, DataError
from zoo.utils.lock import locked
from zoo.utils.measures import MEASURES, Measure, require_recorded

LOCK = ".lock"
ERRORS = "errors"
POLL_SECONDS = 0.5

AnyPlanner = Planner | LadderPlanner | SeedPlanner


@dataclass(frozen=True)
class SweepResult:
    """The state of a sweep when `zoo sweep` ends.

    Attributes:
        manifest: the last content of sweep.json.
        outcomes: the state of the runs, by id.
        finished: whether nothing is left to do; otherwise the sweep was interrupted.
    """

    manifest: Manifest
    outcomes: Mapping[str, Outcome]
    finished: bool


def execute(
    sweep: Sweep, workers: int, console: Console | None = None, *, largest_first: bool = False
) -> SweepResult:
    """Train the runs that a sweep still needs.

    Runs that have ended are reused, runs that were interrupted are resumed. A run that fails is recorded
    with its error; the next call tries it again unless it diverged. Ctrl-C or SIGTERM saves all runs and
    stops.

    Args:
        sweep: the sweep, from `load_sweep`.
        workers: the number of runs at a time.
        console: where to show the progress; None: it is not shown.
        largest_first: whether the tuning comes before all other runs, and among these the largest models,
            instead of the order of the plan.

    Raises:
        ConfigError: Two runs have the same id, a run folder was edited, or `largest_first` is given for a
            sweep without sizes.
        DataError: No run can read its data.
        ZooError: Another sweep is running in the same folder, lines cannot be written, or the task by whose
            score runs are compared cannot be used.
    """
    if largest_first and sweep.scale is None:
        raise ConfigError(f"sweep: --largest-first: {sweep.name} has no sizes (scale); expected a ladder")
    sweep = sweep.prepared()
    planner = planner_of(sweep)
    busy = f"{sweep.out}: another `zoo sweep` is at work there; wait for it, or choose another `out`"
    dying = f"{sweep.out}: workers of a sweep that was killed are still at work there; try again soon"
    if sweep.lines is not None:
        require_file(sweep.lines.file)
    with locked(sweep.out / LOCK, busy):
        with locked(sweep.out / WORKER_LOCK, dying, timeout=60):
            outcomes = {run: sweep.outcome(run) for run in planner.ids}
        if not any(outcome.ended for outcome in outcomes.values()):
            _check_data(planner.configs, sweep)
        compiles = any(Job.of(config).train.compile for config in planner.configs)
        pool = Pool(workers, sweep.out, sweep.folder / ERRORS, compiles, sweep.scoring)
        if console is not None:
            runs = settled_plan(sweep, planner, outcomes).runs
            for note in (*sweep.notes, *replaced_runs(sweep, runs, outcomes)):
                console.print(note, highlight=False, markup=False)
        with Interrupt() as interrupt, Display(console, sweep.name, sweep.measure) as display:
            try:
                return _Execution(sweep, planner, pool, outcomes, display, largest_first).loop(interrupt)
            finally:
                pool.stop()


def planner_of(sweep: Sweep) -> AnyPlanner:
    """The planner of a sweep."""
    planner = LadderPlanner(sweep) if sweep.ladder else Planner(sweep)
    return planner if sweep.max_seeds is None else SeedPlanner(sweep, planner)


def settled_plan(sweep: Sweep, planner: AnyPlanner, outcomes: dict[str, Outcome]) -> SweepPlan:
    """The plan after reading the state of all its runs, which may have ended in an earlier session.

    Args:
        sweep: the sweep.
        planner: the planner of the sweep.
        outcomes: outcomes by id, to which those of new runs in the plan are added.
    """
    return plan_of_known(planner, outcomes, lambda run: known_by_line(sweep, run) or sweep.outcome(run.id))


def plan_of_known(
    planner: AnyPlanner, outcomes: dict[str, Outcome], look: Callable[[PlannedRun], Outcome]
) -> SweepPlan:
    """The plan after reading the state of all its runs.

    Args:
        planner: the planner of the sweep.
        outcomes: outcomes by id, to which those of new runs in the plan are added.
        look: a function that returns the outcome of a run.
    """
    while True:
        plan = planner.plan(outcomes)
        new = [run for run in plan.runs if run.id not in outcomes]
        if not new:
            return plan
        outcomes |= {run.id: look(run) for run in new}


def known_by_line(sweep: Sweep, run: PlannedRun) -> Outcome | None:
    """The outcome that a run's line records; None if the run has no line."""
    return sweep.lines.outcome(run.key, run.config, run.steps) if sweep.lines is not None else None


def _check_data(configs: Iterable[RunConfig], sweep: Sweep) -> None:
    """Refuse a sweep in which no run can read its data; if only some runs cannot, these will fail.

    Raises:
        DataError: No run can read its data (the error is the first run's), the data does not have the measure
            of the comparison, the lines are of runs with other data, or the task of the comparison has
            answers beyond the context.
    """
    configs, errors = list(configs), dict[str, DataError]()
    for config in configs:
        job = Job.of(config)
        key = job.data.model_dump_json() + job.model.model_dump_json()
        if key in errors:
            continue
        try:
            with located(config):
                dataset = job.data.prepare(job.model)
        except DataError as error:
            errors[key] = error
        else:
            _check_measure(dataset, sweep.measure)
            dataset.measure_overlap()
            if sweep.lines is not None and all(Job.of(other).data == job.data for other in configs):
                sweep.lines.require_data(dataset.fingerprint, *dataset.former_fingerprints)
            if sweep.scoring is not None and sweep.context is not None and dataset.tokenizer is not None:
                sweep.scoring.require_room(dataset.tokenizer, sweep.context)
            return
    if errors:
        raise next(iter(errors.values()))


def _check_measure(dataset: Dataset, measure: Measure) -> None:
    """Refuse a measure that the prepared data does not have: bits per byte, if the tokenizer loses text.

    Raises:
        DataError: The data does not have the measure.
    """
    try:
        if measure.name in MEASURES:  # measures of single files are checked by the configuration
            require_recorded(measure, dataset.measures)
    except ValueError as error:
        raise DataError(f"metric: {error}") from error


def _branches(run: PlannedRun, plan: SweepPlan) -> list[PlannedRun]:
    """The runs that share the first steps of a run."""
    return [other for other in plan.runs if other.trunk == run.id]


def _begins_largest(run: PlannedRun) -> tuple[bool, int, int]:
    """The order of runs that begins with the tuning, which others wait for, and with the largest models."""
    return "tune" not in run.phases, -run.params, -run.steps


class _Execution:
    """The state of a sweep that is being run."""

    def __init__(
        self,
        sweep: Sweep,
        planner: AnyPlanner,
        pool: Pool,
        outcomes: dict[str, Outcome],
        display: Display,
        largest_first: bool,
    ) -> None:
        self._sweep, self._planner, self._pool = sweep, planner, pool
        self._outcomes, self._display, self._largest_first = outcomes, display, largest_first
        self._manifest: Manifest | None = None  # None: not made of the present plan and outcomes
        self._made_of: tuple[list[str], bool] | None = None

    def loop(self, interrupt: Interrupt) -> SweepResult:
        """Start and record runs until none is due or, after an interrupt, until the workers have saved."""
        stopping, plan = False, self._replanned()
        while True:
            running = self._pool.running
            due = [r for r in plan.runs if r.id not in running and not r.is_done(self._outcome(r))]
            ready = [run for run in due if not self._waits(run, plan)]
            if interrupt.requested and not stopping:
                stopping = True
                self._pool.stop()
            if not stopping:
                self._start(ready, plan)
            manifest = self._record(plan, stopping)
            if not self._pool.running and (stopping or not due):
                return SweepResult(manifest, self._outcomes, not due)
            ended = list(self._pool.ended(POLL_SECONDS))
            for run, error in ended:
                outcome = self._sweep.outcome(run.id)
                # Ctrl-C reaches the workers as well, and one that starts a run ends at once.
                failed = error is not None and not interrupt.requested
                self._outcomes[run.id] = replace(outcome, error=error, crashed=True) if failed else outcome
            if ended:
                plan = self._replanned()

    def _replanned(self) -> SweepPlan:
        """The plan by the outcomes so far, whose runs that have ended get their lines."""
        plan = settled_plan(self._sweep, self._planner, self._outcomes)
        self._keep(plan)
        self._manifest = None
        return plan

    def _start(self, ready: Sequence[PlannedRun], plan: SweepPlan) -> None:
        """Start runs in free workers: first those for which a worker of their shape is idle.

        A worker that changes its shape is replaced by a new process, which has to load torch and what was
        compiled, and takes longer for it than for a run of a small model on a GPU. With `largest_first` the
        order matters more.
        """
        if self._largest_first:
            left = sorted(ready, key=_begins_largest)
        else:
            left = [run for run in ready if not self._start_where_compiled(run, plan)]
        for run in left:
            if self._pool.free and not self._pool.holds_back(run):
                self._pool.start(run, _branches(run, plan))

    def _start_where_compiled(self, run: PlannedRun, plan: SweepPlan) -> bool:
        """Start a run if a worker of its shape is idle; return whether there is one."""
        found = self._pool.has_worker_for(run)
        if found:
            self._pool.start(run, _branches(run, plan))
        return found

    def _keep(self, plan: SweepPlan) -> None:
        """Add a line for every run that has ended and has none."""
        lines = self._sweep.lines
        if lines is None:
            return
        for run in plan.runs:
            outcome = self._outcome(run)
            if outcome.ended and not outcome.crashed:
                lines.add(run.key, run.config, self._sweep.runs / run.id, outcome, run.trunk)

    def _waits(self, run: PlannedRun, plan: SweepPlan) -> bool:
        """Whether a branch waits until its trunk has reached its starting point."""
        trunk = next((other for other in plan.runs if other.id == run.trunk and run.begins), None)
        return trunk is not None and not trunk.is_done(self._outcome(trunk))

    def _outcome(self, run: PlannedRun) -> Outcome:
        return self._outcomes.get(run.id, NOT_STARTED)

    def _record(self, plan: SweepPlan, stopping: bool) -> Manifest:
        """Write the manifest if it may have changed, and show the runs.

        With hundreds of runs a manifest takes a tenth of a second, which workers would lack at every poll.
        """
        running = self._pool.running
        manifest, state = self._manifest, (running, stopping)
        if manifest is None or state != self._made_of:
            manifest = manifest_of(self._sweep, plan, self._outcomes, running, stopping)
            write_manifest(self._sweep.folder, manifest)
            self._manifest, self._made_of = manifest, state
        self._display.show([self._progress(*pair) for pair in zip(manifest.runs, plan.runs, strict=True)])
        return manifest

    def _progress(self, run: Run, planned: PlannedRun) -> RunProgress:
        if run.status in ("running", "interrupted"):  # the last validation may be long ago
            read = read_progress(self._sweep.runs / run.id, self._sweep.measure)
            return RunProgress(run, planned.steps, *read)
        outcome, measure = self._outcome(planned), self._sweep.measure
        value = measure.cost(outcome.losses[max(outcome.losses)]) if outcome.losses else None
        if measure.is_loss:
            return RunProgress(run, planned.steps, outcome.step, value)
        return RunProgress(run, planned.steps, outcome.step, outcome.last_loss, value)
