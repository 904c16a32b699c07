"""One session of a run: from its start until the run is finished, interrupted or diverged."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from zoo.config.plugins import copy_sources, options
from zoo.run.config import dump_config
from zoo.run.job import Job
from zoo.run.loggers import Logger
from zoo.train.build import Parts, build
from zoo.train.checkpoints import Checkpoints, load_diagnosis
from zoo.train.diagnosis import Diagnosis
from zoo.train.distributed import World
from zoo.train.environment import describe
from zoo.train.interrupt import Interrupt
from zoo.train.lines import RecordLines, TrainingLines, WhileRead
from zoo.train.loop import TrainingLoop
from zoo.train.metrics import MetricsLog
from zoo.train.prefetch import Prefetcher
from zoo.train.progress import TrainingBar
from zoo.train.source_checkpoint import report_loading
from zoo.train.spikecontrol import Rollback, SpikeControl, go_back
from zoo.train.start import Start
from zoo.utils.errors import DivergenceError
from zoo.utils.progress import ignore, progress
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class Ended:
    """The point at which a session of training has ended.

    Attributes:
        step: the number of steps done.
        signalled: whether a signal other than Ctrl-C ended the session, on this or another rank.
        evaluated: whether the evaluation that follows the last step was made.
    """

    step: int
    signalled: bool = False
    evaluated: bool = True


def run_session(
    job: Job,
    start: Start,
    world: World,
    claim: Callable[[], None],
    console: Console | None,
    until: int | None = None,
    records: TextIO | None = None,
    task: str | None = None,
) -> Ended:
    """Train from `start` to the end of the run, or until the session is interrupted.

    Args:
        job: the run.
        start: where the session starts, from `choose_start`.
        world: the ranks.
        claim: a function that locks the run once its folder exists.
        console: where to show progress; None: it is not shown.
        until: stop after this step as if interrupted there; None: do all steps.
        records: an additional stream on which the main rank writes the records of metrics.jsonl instead of
            progress; None: there is none.
        task: the name of the task whose progress `zoo.utils.progress` shows; None: it is not shown.

    Returns:
        The end of the session, whose last step is in a checkpoint.

    Raises:
        ZooError: The data, the sizes, the checkpoint or the disk cannot be used.
        DivergenceError: The loss, the gradient or the weights are not finite.
        RankError: Another rank has ended or does not answer.
    """
    # One for all sessions: a stop that was requested before a rollback still counts after it.
    interrupt = Interrupt(world.size > 1, job.train.stop_signal)
    while True:
        try:
            return _session(job, start, world, claim, console, until, records, interrupt, task)
        except Rollback as rollback:
            start = go_back(rollback, job.folder, world, job.train.checkpoint_every)
            if console:
                console.print(f"step {rollback.spike.at}: {rollback.spike}; back to step {start.step}")


def _session(
    job: Job,
    start: Start,
    world: World,
    claim: Callable[[], None],
    console: Console | None,
    until: int | None,
    records: TextIO | None,
    interrupt: Interrupt,
    task: str | None,
) -> Ended:
    """`run_session` until the first rollback.

    Raises:
        Rollback: A spike occurred because of which the run goes back to a checkpoint.
    """
    parts = build(job, start, world)
    dataset = parts.dataset
    diagnosis = Diagnosis(parts.registry, parts.optimizer, world, job.train.diagnose_every, job.train.steps)
    if start.checkpoint is not None:
        diagnosis.load(load_diagnosis(start.checkpoint), start.step)
    spikes = SpikeControl(job.train.spikes, start.checkpoint, job.folder, world)
    world.on_main(lambda: _begin(job, start, world, claim, parts, console))
    bar = console if console and console.is_interactive and records is None else None
    shown = _shown(job, start, console, records, parts, interrupt) if bar is None else None
    planned = job.train.steps if until is None else min(until, job.train.steps)
    with (
        interrupt,  # until the last checkpoint is written
        Checkpoints(
            job.folder, world, job.train.keep_last, dataset.fingerprint, parts.measure
        ) as checkpoints,
        MetricsLog(job.folder if world.is_main else None, start, job, shown) as log,
        nullcontext(ignore) if task is None else progress(task, planned - start.step) as advance,
        TrainingBar(bar, job.folder.name, start.step, job.train.steps, dataset.unit, advance) as drawn,
        Prefetcher(parts.dataset, world.device) as batches,
    ):
        loop = TrainingLoop(job, parts, batches, world, log, drawn, checkpoints, diagnosis, spikes, start)
        try:
            done = loop.run(interrupt, job.train.steps if until is None else until)
        except DivergenceError as error:
            checkpoints.finish()
            log.write("diverged", loop.done, reason=str(error))
            raise DivergenceError(_advice(job.folder, loop.done, str(error))) from error
        except RuntimeError as error:
            if (gone := world.lost(error, f"{job.folder}: step {loop.done}")) is not None:
                raise gone from error
            raise
    if console and (done < job.train.steps or loop.owes_evaluation):
        console.print(
            f"Stopped{' and saved' if done else ''} at step {done} of {job.train.steps}. "
            f"Go on with: zoo train {shlex.quote(str(job.folder))} --resume{options(job.config.plugins)}"
        )
    early = done < planned or loop.owes_evaluation
    return Ended(done, early and not interrupt.by_hand, not loop.owes_evaluation)


def _shown(
    job: Job,
    start: Start,
    console: Console | None,
    records: TextIO | None,
    parts: Parts,
    interrupt: Interrupt,
) -> Logger | None:
    """The logger that shows the records of a session without a progress bar; None: they are not shown."""
    if records is not None:
        return WhileRead(RecordLines(records), records, interrupt.request)
    if console is None:
        return None
    lines = TrainingLines(console, start.step, job.train.steps, parts.dataset.unit, parts.measure)
    return WhileRead(lines, console.file, interrupt.request)


def _begin(
    job: Job, start: Start, world: World, claim: Callable[[], None], parts: Parts, console: Console | None
) -> None:
    """Create or claim the run folder, and write the first records of the session."""
    job.folder.write_config(dump_config(job.config))
    claim()
    if start.checkpoint is not None:  # It could be read, so that no other checkpoint has to replace it.
        job.folder.trim_to_last_checkpoint()
        job.folder.prune(job.train.keep_last)
    copy_sources(job.config.plugins, job.folder.plugins)
    if parts.initial is not None:
        report_loading(parts.initial, job.folder, console)
    if console is not None and parts.dataset.summary:
        console.print(parts.dataset.summary)
    job.folder.add_session(describe(world, start.step))
    if start.checkpoint is None:
        parts.dataset.save(job.folder.path)


def _advice(run: RunFolder, step: int, reason: str) -> str:
    """The message about a run that diverged: where it stopped, and how to continue."""
    last = run.checkpoint()
    kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
    return (
        f"step {step}: {reason}; training stopped, {kept}. The same configuration would get here again: "
        "train under another name (name=...) with a lower optimizer.lr, a longer schedule.warmup or a "
        "smaller train.clip_norm"
    )
