"""The runs of a sweep as commands for a scheduler."""

from __future__ import annotations

import shlex

from zoo.ablate.execute import planner_of, settled_plan
from zoo.ablate.outcome import write_record
from zoo.ablate.sweep import Sweep
from zoo.config.plugins import options
from zoo.run.config import dump_config
from zoo.run.job import Job
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError


def write_jobs(sweep: Sweep) -> list[str]:
    """Write the configuration of every run that is due now, and return the commands that train them.

    Runs that depend on the results of others, such as the final ones of a tuned variant, become due when
    these are done; call this function again then. The commands may be repeated, in any order and at the same
    time.

    Args:
        sweep: the sweep, from `load_sweep`.

    Raises:
        ConfigError: The sweep stops runs early or scores tasks, which separate commands cannot do.
    """
    if sweep.scoring is not None:
        raise ConfigError(
            f"sweep: --jobs cannot measure {sweep.measure.name}; expected a metric of the validation"
        )
    planner = planner_of(sweep)
    outcomes = {run: sweep.outcome(run) for run in planner.ids}
    for config in planner.configs:
        job = Job.of(config)
        last = job.folder.checkpoint() if job.folder.exists else None
        if last is None or last.step < job.train.steps or last.owes_evaluation:
            continue
        if not outcomes[config.name].ended:
            write_record(job.folder.path)  # `zoo train` has finished it
            outcomes[config.name] = sweep.outcome(config.name)
    commands = []
    for run in settled_plan(sweep, planner, outcomes).runs:
        if run.is_done(outcomes[run.id]):
            continue
        if run.until < run.steps:
            raise ConfigError(f"sweep: --jobs cannot stop {run.id} at step {run.until}; tune without halving")
        path = sweep.folder / "jobs" / f"{run.id}.yaml"
        write_text(path, dump_config(run.config))
        commands.append(f"zoo train {shlex.quote(str(path))} --resume auto{options(run.config.plugins)}")
    return commands
