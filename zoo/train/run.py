"""`zoo train`: from a configuration to a trained checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from rich.console import Console

from zoo.run.config import RunConfig
from zoo.run.job import Job
from zoo.run.located import located
from zoo.train.claim import claimable
from zoo.train.distributed import world
from zoo.train.session import Ended, run_session
from zoo.train.start import Auto, choose_start, with_recorded_starts
from zoo.utils.allocator import keep_freed_memory
from zoo.utils.errors import ZooError
from zoo.utils.progress import Progress
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class RunResult:
    """The result of a session of training.

    Attributes:
        folder: the run folder, which `load_model` opens.
        step: number of optimizer steps done.
        steps: number of optimizer steps of the whole run.
        validation: the last validation loss in nats per target; None without validation examples.
        best: the lowest validation loss.
        signalled: whether a signal other than Ctrl-C ended the session, on this or another rank.
        evaluated: whether the evaluation after the last step was made; otherwise a resumed run begins with
            it.
    """

    folder: Path
    step: int
    steps: int
    validation: float | None
    best: float | None
    signalled: bool = False
    evaluated: bool = True

    @property
    def finished(self) -> bool:
        """Whether all steps are done and evaluated; otherwise the run was interrupted and saved."""
        return self.step >= self.steps and self.evaluated


def train(
    config: RunConfig,
    resume: bool | Auto = False,
    console: Console | None = None,
    until: int | None = None,
    *,
    folder: RunFolder | None = None,
    records: TextIO | None = None,
    task: str | None = None,
) -> RunResult:
    """Train a model as configured, alone or as one of torchrun's processes.

    The run folder gets the resolved configuration, environment.json, metrics.jsonl, the tokenizer and
    checkpoints. Ctrl-C or SIGTERM saves and ends the run after the current step, and so does a reader that
    closes the output. A run that has finished with the same configuration is left as it is.

    Args:
        config: the configuration, with `model`, `optimizer`, `data` and `train`.
        resume: whether to continue from the last checkpoint, bit for bit as if the run had never stopped;
            "auto": continue if there is a run, otherwise start one.
        console: where to show progress, as a bar on a terminal and as lines elsewhere; None: silent.
        until: save and stop after this step, as if interrupted there; None: do all steps.
        folder: the run folder; None: ``<train.runs_dir>/<name>``.
        records: an additional stream for the records of metrics.jsonl, one line of JSON each; progress is not
            shown then. None: there is none.
        task: the name under which `zoo.utils.progress` shows how many of the steps up to `until` are done,
            for a run that is a part of another task, without a console; None: it is not shown.

    Returns:
        The step that was reached, and the validation losses.

    Raises:
        ConfigError: Parts of the configuration are missing, there is another run in the folder, or a resumed
            run was started with another configuration.
        ZooError: The data, the sizes, the device or the checkpoint cannot be used.
        DivergenceError: The loss, the gradient or the weights are not finite; the last checkpoint is kept.
        RankError: Another process of the run has ended or does not answer; the last checkpoint is kept.
    """
    job = with_recorded_starts(Job.of(config, folder), resume)
    for logger in job.train.loggers:
        logger.check()
    with (
        located(config),
        world(job.train.device, job.train.parallel) as ranks,
        claimable(job.folder) as claim,
    ):
        if ranks.device.type == "cpu":
            keep_freed_memory()
        finished = choose_start(job, resume).is_finished(job.train.steps)
        ranks.wait()
        own_console = console if ranks.is_main else None
        if not ranks.is_main:
            Progress.console = None
        ranks.on_main(partial(_settle, job, claim) if finished else claim)
        start = choose_start(job, resume)  # another process may have started or continued the run meanwhile
        ranks.wait()  # or a slow rank would find the run that the main one is about to begin
        if not start.is_finished(job.train.steps):
            return _result(job, run_session(job, start, ranks, claim, own_console, until, records, task))
        if own_console:
            own_console.print(_nothing_to_do(job, start.step))
        return _result(job, Ended(start.step))


def _nothing_to_do(job: Job, step: int) -> str:
    """The message for a run that has all the requested steps, or more."""
    if step == job.train.steps:
        return f"{job.folder} has all its {step} steps already: nothing to do."
    asked = f"train.steps is {job.train.steps}"
    return f"{job.folder} is at step {step}, and {asked}: nothing to do; expected more than {step} to go on."


def _settle(job: Job, claim: Callable[[], None]) -> None:
    """Remove temporary files that a killed session left in a finished run, unless it is read-only."""
    with suppress(ZooError):
        claim()
        job.folder.trim_to_last_checkpoint()
        job.folder.prune(job.train.keep_last)


def _result(job: Job, ended: Ended) -> RunResult:
    losses = [r["cross_entropy"] for r in job.folder.read_metrics() if r["kind"] == "validation"]
    last, best = (losses[-1], min(losses)) if losses else (None, None)
    return RunResult(
        job.folder.path, ended.step, job.train.steps, last, best, ended.signalled, ended.evaluated
    )
