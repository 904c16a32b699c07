"""The checkpoint that Q6 fine-tunes: the last one of a run of Q1."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zoo.ablate.execute import plan_of_known
from zoo.ablate.ladder_plan import LadderPlanner
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun
from zoo.ablate.sweep import Sweep
from zoo.run.config import dump_config, load_config
from zoo.run.job import Job
from zoo.utils.errors import ZooError
from zoo.utils.run_folder import RunFolder

NAME = "q6-source"
"""Of the folder beside the runs of the study; configs/sweeps/scale/q6-base.yaml has it as well."""
PAUSE = 60.0
"""Seconds between two looks at a command that runs."""


def lay_source(first: Sweep) -> Path:
    """Lay the checkpoint where Q6 begins, unless it lies there.

    The run is the baseline's of the largest size and the longest budget, with the first seed. It is copied
    from its folder; where that is gone, it is trained once more with the rate that its line has.

    Args:
        first: the sweep of Q1.

    Returns:
        The folder.

    Raises:
        ZooError: the run has not ended yet.
        SystemExit: the training was interrupted, or failed; the next call goes on.
    """
    folder = first.out / NAME
    if is_laid(first):
        return folder
    run = source_run(first)
    if folder.exists():
        trained = ["train", str(folder), "--resume"]
    elif (first.runs / run.id).is_dir():
        with tempfile.TemporaryDirectory(dir=first.out) as beside:  # a copy that is interrupted leaves none
            shutil.copytree(first.runs / run.id, Path(beside) / NAME).rename(folder)
        return folder
    else:
        own = Job.of(run.config).train.model_copy(update={"runs_dir": first.out})
        written = first.out / f"{NAME}.yaml"
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(dump_config(run.config.model_copy(update={"name": NAME, "train": own})))
        trained = ["train", str(written)]
    if status := run_zoo(*trained):
        raise SystemExit(status)
    return folder


def run_zoo(*arguments: str, meanwhile: Callable[[], None] | None = None) -> int:
    """The status of a command of zoo; Ctrl-C reaches it as well, and it saves its runs before it ends.

    Args:
        *arguments: the arguments of the command.
        meanwhile: a function that is called every `PAUSE` seconds while the command runs.
    """
    with subprocess.Popen([sys.executable, "-m", "zoo", *arguments]) as command:
        while True:
            with suppress(KeyboardInterrupt):
                try:
                    return command.wait(PAUSE)
                except subprocess.TimeoutExpired:
                    if meanwhile is not None:
                        meanwhile()


def is_laid(first: Sweep) -> bool:
    """Whether the checkpoint of Q6 is there, whole."""
    run = RunFolder(first.out / NAME)
    if not run.exists or not run.metrics.is_file():
        return False
    lines = run.read_metrics()
    validated = max((line["step"] for line in lines if line["kind"] == "validation"), default=0)
    return bool(validated == Job.of(load_config(run.config)).train.steps)


def source_run(first: Sweep) -> PlannedRun:
    """The run whose checkpoint Q6 fine-tunes.

    Raises:
        ZooError: it has no line yet.
    """
    lines, outcomes = first.lines, dict[str, Outcome]()
    assert lines is not None  # every question has lines

    def look(run: PlannedRun) -> Outcome:
        return lines.outcome(run.key, run.config, run.steps) or NOT_STARTED

    largest = first.ladder[-1]
    wanted = (first.baseline, largest.params, largest.budgets[-1], largest.seeds[0])
    for run in plan_of_known(LadderPlanner(first), outcomes, look).runs:
        if (run.variant, run.params, run.tokens, run.config.seed) == wanted and outcomes[run.id].ended:
            return run
    raise ZooError(
        f"Q6 begins with the checkpoint of {first.baseline} at {largest.params:,} parameters and "
        f"{largest.budgets[-1]:,} tokens, seed {largest.seeds[0]}, which has no line in {lines.file}; "
        "expected Q1 to have been trained"
    )
