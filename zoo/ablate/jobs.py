"""The runs of a sweep as commands for a scheduler."""

from __future__ import annotations

import shlex

from zoo.ablate.execute import known_by_line, plan_of_known, planner_of
from zoo.ablate.outcome import NO_VALIDATION, Outcome, write_record
from zoo.ablate.plan import PlannedRun
from zoo.ablate.sweep import Sweep
from zoo.config.plugins import options
from zoo.run.config import dump_config
from zoo.run.job import Job
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError, ZooError


def write_jobs(sweep: Sweep) -> list[str]:
    """Write the configuration of every run that is due now, and return the commands that train them.

    Runs that depend on the results of others, such as the final ones of a tuned variant, become due when
    these are done; call this function again then. The commands may be repeated, in any order and at the same
    time.

    Args:
        sweep: the sweep, from `load_sweep`.

    Raises:
        ConfigError: The sweep stops runs early or scores tasks, which separate commands cannot do.
        ZooError: A run has made all its steps and has no validation.
    """
    if sweep.scoring is not None:
        raise ConfigError(
            f"sweep: --jobs cannot measure {sweep.measure.name}; expected a metric of the validation"
        )
    outcomes: dict[str, Outcome] = {}
    plan = plan_of_known(planner_of(sweep), outcomes, lambda run: _outcome(sweep, run))
    commands = []
    for run in plan.runs:
        if run.is_done(outcomes[run.id]):
            continue
        if run.until < run.steps:
            raise ConfigError(f"sweep: --jobs cannot stop {run.id} at step {run.until}; tune without halving")
        path = sweep.folder / "jobs" / f"{run.id}.yaml"
        write_text(path, dump_config(run.config))
        commands.append(f"zoo train {shlex.quote(str(path))} --resume auto{options(run.config.plugins)}")
    return commands


def _outcome(sweep: Sweep, run: PlannedRun) -> Outcome:
    """The state of a run, which gets its record here if `zoo train` has finished it.

    Raises:
        ZooError: The run has made all its steps and has no validation.
    """
    outcome = known_by_line(sweep, run) or sweep.outcome(run.id)
    folder = Job.of(run.config).folder
    last = folder.checkpoint() if folder.exists and not outcome.ended else None
    if last is None or last.step < run.steps or last.owes_evaluation:
        return outcome
    if outcome.last_loss is None:
        raise ZooError(f"{folder.path}: {NO_VALIDATION}")
    write_record(folder.path)
    return sweep.outcome(run.id)
