"""`zoo train`: from a configuration to a trained checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from zoo.run.config import RunConfig
from zoo.run.job import Job
from zoo.train.distributed import world
from zoo.train.session import run_session
from zoo.train.start import choose_start
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class RunResult:
    """The result of a session.

    Attributes:
        folder: the run folder, which `load_model` opens.
        step: number of optimizer steps done.
        steps: number of optimizer steps of the whole run.
        validation: the last validation loss in nats per target; None without validation examples.
        best: the lowest validation loss.
    """

    folder: Path
    step: int
    steps: int
    validation: float | None
    best: float | None

    @property
    def finished(self) -> bool:
        """Whether all steps are done; otherwise the run was interrupted and saved."""
        return self.step >= self.steps


def train(
    config: RunConfig,
    resume: bool = False,
    console: Console | None = None,
    until: int | None = None,
    *,
    folder: RunFolder | None = None,
) -> RunResult:
    """Train a model as configured, alone or as one of torchrun's processes.

    The run folder gets the resolved configuration, environment.json,
    metrics.jsonl, the tokenizer and checkpoints. Ctrl-C or SIGTERM ends the run after the step,
    saved. A run that has finished with the same configuration is left as it is.

    Args:
        config: with `model`, `optimizer`, `data` and `train`.
        resume: continue from the last checkpoint, bit for bit as if the run had never stopped.
        console: where to show progress; None: silent.
        until: stop after this step, saved, as if interrupted there; None: do all steps.
        folder: the run folder; None: ``<train.runs_dir>/<name>``.

    Returns:
        The step that was reached, and the validation losses.

    Raises:
        ConfigError: parts of the configuration are missing, there is another run in the folder, or the
            configuration is not the one that a resumed run was started with.
        ZooError: the data, the sizes, the device or the checkpoint cannot be used.
        DivergenceError: the loss, the gradient or the weights are not finite; the last checkpoint is kept.
    """
    job = Job.of(config, folder)
    for logger in job.train.loggers:
        logger.check()
    with world(job.train.device) as ranks:
        start = choose_start(job, resume)
        ranks.wait()
        own_console = console if ranks.is_main else None
        if start.step < job.train.steps:
            return _result(job, run_session(job, start, ranks, own_console, until))
        if own_console:
            own_console.print(f"{job.folder} has all its {start.step} steps already: nothing to do.")
        return _result(job, start.step)


def _result(job: Job, step: int) -> RunResult:
    losses = [r["cross_entropy"] for r in job.folder.read_metrics() if r["kind"] == "validation"]
    return RunResult(
        job.folder.path, step, job.train.steps, *((losses[-1], min(losses)) if losses else (None, None))
    )
