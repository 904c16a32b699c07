"""One session of a run: from its start until the run is finished, interrupted or diverged."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from zoo.config.plugins import copy_sources, sources
from zoo.data.dataset import BatchSpec
from zoo.optim.averages import evaluation_weights
from zoo.optim.state import tensors_in
from zoo.run.config import dump_config
from zoo.run.job import Job
from zoo.run.loggers import Logger
from zoo.train.ahead import BatchesAhead
from zoo.train.arriving import arrives_alone
from zoo.train.build import Parts, build
from zoo.train.checkpoints import CLIP, Checkpoints, load_diagnosis
from zoo.train.clock import Clock
from zoo.train.diagnosis import Diagnosis
from zoo.train.distributed import World
from zoo.train.environment import describe
from zoo.train.evaluate import EvaluationStopped, bits_per_byte, evaluate
from zoo.train.interrupt import Interrupt
from zoo.train.lines import RecordLines, TrainingLines, validation_in_words
from zoo.train.metrics import MetricsLog
from zoo.train.monitor import Monitor
from zoo.train.progress import TrainingBar
from zoo.train.source_checkpoint import report_loading
from zoo.train.spikecontrol import Rollback, SpikeControl, go_back
from zoo.train.spikes import Spike
from zoo.train.start import Start
from zoo.train.step import StepResult, global_norm, undone
from zoo.train.utilisation import peak_share
from zoo.utils.device import peak_memory
from zoo.utils.errors import DivergenceError
from zoo.utils.measures import with_perplexity
from zoo.utils.run_folder import CheckpointFolder, RunFolder, Which
from zoo.utils.untyped import JsonObject


@dataclass(frozen=True)
class Ended:
    """The end of a session.

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
            return _session(job, start, world, claim, console, until, records, interrupt)
        except Rollback as rollback:
            start = go_back(rollback, job.folder, world)
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
) -> Ended:
    """`run_session` until the first rollback.

    Raises:
        Rollback: A spike occurred because of which the run goes back to a checkpoint.
    """
    parts = build(job, start, world)
    dataset = parts.dataset
    diagnosis = Diagnosis(parts.registry, parts.optimizer, world, job.train.diagnose_every, job.train.steps)
    if start.checkpoint is not None:
        diagnosis.load(load_diagnosis(start.checkpoint))
    spikes = SpikeControl(job.train.spikes, start.checkpoint, job.folder)
    world.on_main(lambda: _begin(job, start, world, claim, parts, console))
    bar = console if console and console.is_interactive and records is None else None
    shown = _shown(job, start, console, records, parts) if bar is None else None
    with (
        interrupt,  # until the last checkpoint is written
        Checkpoints(
            job.folder, world, job.train.keep_last, dataset.fingerprint, parts.measure
        ) as checkpoints,
        MetricsLog(job.folder if world.is_main else None, start, job, shown) as log,
        TrainingBar(bar, job.folder.name, start.step, job.train.steps, dataset.unit) as drawn,
        BatchesAhead(parts.dataset, world.device) as batches,
    ):
        session = _Session(job, parts, batches, world, log, drawn, checkpoints, diagnosis, spikes, start)
        try:
            done = session.loop(interrupt, job.train.steps if until is None else until)
        except DivergenceError as error:
            checkpoints.finish()
            raise DivergenceError(_advice(job.folder, session.done, str(error))) from error
        except RuntimeError as error:
            if (gone := world.lost(error, f"{job.folder}: step {session.done}")) is not None:
                raise gone from error
            raise
    if console and (done < job.train.steps or session.owes_evaluation):
        plugins = "".join(f" --plugin {shlex.quote(source)}" for source in sources(job.config.plugins))
        console.print(
            f"Stopped{' and saved' if done else ''} at step {done} of {job.train.steps}. "
            f"Go on with: zoo train {job.folder} --resume{plugins}"
        )
    planned = job.train.steps if until is None else min(until, job.train.steps)
    early = done < planned or session.owes_evaluation
    return Ended(done, early and not interrupt.by_hand, not session.owes_evaluation)


def _shown(
    job: Job, start: Start, console: Console | None, records: TextIO | None, parts: Parts
) -> Logger | None:
    """The logger that shows the records of a session without a progress bar; None: they are not shown."""
    if records is not None:
        return RecordLines(records)
    if console is None:
        return None
    return TrainingLines(console, start.step, job.train.steps, parts.dataset.unit, parts.measure)


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


class _Session:
    """The training loop, with its evaluations, measurements, log lines and checkpoints.

    If every step is taken whatever its measurements are, the host does not wait for the GPU: it reads the
    measurements of a step when the gradient of the next one has been queued, or earlier if something is
    written that depends on them.

    Attributes:
        done: number of steps done.
        is_behind: whether the measurements of a step are read one step later.
        unread: a step that was taken and whose measurements were not read yet.
        read: the last measurements that were read.
    """

    def __init__(
        self,
        job: Job,
        parts: Parts,
        batches: BatchesAhead,
        world: World,
        log: MetricsLog,
        bar: TrainingBar,
        checkpoints: Checkpoints,
        diagnosis: Diagnosis,
        spikes: SpikeControl,
        start: Start,
    ) -> None:
        self.job, self.parts, self.batches, self.world = job, parts, batches, world
        self.log, self.bar, self.checkpoints, self.diagnosis = log, bar, checkpoints, diagnosis
        self.spikes, self.settings = spikes, job.train
        self.is_behind = arrives_alone(world.device) and spikes.takes_every_step
        self.unread: tuple[int, StepResult] | None = None
        self.read: StepResult | None = None
        self.done, self.owes_evaluation = start.step, start.owes_evaluation
        self.per_step = self.settings.batch_size * parts.dataset.units_per_example
        self.clock = Clock(peak_share(job, world, parts.dataset.units_per_example))

    def loop(self, interrupt: Interrupt, until: int) -> int:
        """Take steps, at most up to step `until`, and return the number of steps done."""
        stopped = not self._first_evaluation(interrupt)
        while self.done < min(until, self.settings.steps) and not stopped:
            stopped = self._step(interrupt) or self.done == until
            best: Mapping[Which, float] = {}
            if self._due(self.settings.eval_every):
                try:
                    best = self._evaluate(interrupt)
                except EvaluationStopped:
                    self.owes_evaluation = stopped = True
            last = stopped or self.done == self.settings.steps
            if last or best or self.done % self.settings.checkpoint_every == 0:
                self._save(best)
        return self.done

    def _first_evaluation(self, interrupt: Interrupt) -> bool:
        """Evaluate the initial weights, or those that the last session did not; return False if stopped."""
        if self.done and not self.owes_evaluation:
            return True
        try:
            best = self._evaluate(interrupt)
        except EvaluationStopped:
            return False
        if self.owes_evaluation:
            self.log.flush()
            self.checkpoints.add_evaluation(self.done, best)
            self.owes_evaluation = False
        return True

    def _due(self, every: int) -> bool:
        """Whether the number of steps done is a multiple of `every`, or the run is complete."""
        return self.done % every == 0 or self.done == self.settings.steps

    def _batch_spec(self, batch_size: int, skipped: int = 0) -> BatchSpec:
        """The specification of the next step's batch, `skipped` batches later than without rollbacks."""
        return BatchSpec(
            self.job.config.seed, self.done + skipped, batch_size, self.world.rank, self.world.size
        )

    def _step(self, interrupt: Interrupt) -> bool:
        """Take one step and log it; return whether any rank was asked to stop."""
        parts, every = self.parts, self.settings.monitor_every
        batch = self.batches.batch(
            self._batch_spec(self.settings.batch_size, self.spikes.rollback_state.skipped)
        )
        schedule = zip(parts.scheduler.base_lrs, parts.scheduler.lr_lambdas, strict=True)
        for group, (lr, factor) in zip(parts.optimizer.param_groups, schedule, strict=True):
            group["lr"] = lr * factor(self.done) * self.spikes.lr_factor(self.done)
        self.done += 1
        monitor = Monitor(parts.registry) if every and self._due(every) else None
        self.diagnosis.begin(self.done)
        with self.clock.step(self.per_step):
            result = parts.stepper.gradient(batch, lambda: interrupt.requested)
            if monitor is not None:
                monitor.see_gradient()
            self._learn()
            # The first step creates the slots; its numbers are read before it is taken.
            is_unread = self.is_behind and self.read is not None
            spike = self._update_unread(result) if is_unread else self._update(result)
        if self.done == 1:
            self.log.write("size", 1, **sizes(parts))
        if monitor is not None:
            matrices = monitor.measure()
            if spike is None or spike.action == "log":
                self.spikes.set_usual(matrices)
            self.log.write("monitor", self.done, matrices=matrices)
        if spike is not None:
            self.log.write("spike", self.done, **spike.record())
        if self.diagnosis.due:
            self.log.write("diagnose", self.done, **self.diagnosis.measure())
        assert self.read is not None  # the result of this step, or of the one before
        self.bar.step(self.done, self.read.cross_entropy, self.clock.tokens_per_second, self.clock.mfu)
        if self._due(self.settings.log_every):
            self._log(self.read)
        return self.read.stop

    def _update_unread(self, result: StepResult) -> Spike | None:
        """Take a step without waiting for its measurements, unless they are needed right after it.

        Returns:
            The spike, if the measurements were read and the step is one.

        Raises:
            DivergenceError: The measurements were read and are not finite.
        """
        self.checkpoints.release()
        self.unread = (self.done, result)
        self.parts.stepper.update(result, unread=True)
        return self._judge_unread() if self._is_looked_at else None

    @property
    def _is_looked_at(self) -> bool:
        """Whether something is written after the current step that depends on its measurements."""
        settings = self.settings
        regular = settings.log_every, settings.eval_every, settings.checkpoint_every
        intervals = (*regular, *([settings.monitor_every] if settings.monitor_every else []))
        return self.diagnosis.due or any(map(self._due, intervals))

    def _judge_unread(self) -> Spike | None:
        """Read and judge the measurements of a step that was taken before they had arrived.

        Returns:
            The spike, if the step is one; the matrix that moved most is no longer known.

        Raises:
            DivergenceError: The loss or the gradient is not finite. Later computations are dropped.
        """
        if self.unread is None:
            return None
        (step, result), self.unread = self.unread, None
        spike = self.spikes.judge(step, result)
        if not result.is_finite:
            self.done = step
        result.require_finite()
        self.read = result
        return spike

    def _learn(self) -> None:
        """Read the measurements of a step whose log lines are written already, if there is one."""
        if (spike := self._judge_unread()) is not None:
            self.log.write("spike", spike.at, **spike.record())

    def _update(self, result: StepResult) -> Spike | None:
        """Judge the gradient that was computed, and take the step; only `_update_unread` does so, too.

        A spike whose action is `log` is a normal step. If the action is `skip` or `rollback`, weights and
        optimizer stay unchanged: the step is tried and undone, to name the matrix that it would have moved
        most.

        Returns:
            The spike, if the step is one.

        Raises:
            Rollback: Training is to continue from an earlier checkpoint.
            DivergenceError: The loss or the gradient is not finite, or `train.spikes` gives up.
        """
        self.checkpoints.release()
        self.read = result
        parts, spike = self.parts, self.spikes.judge(self.done, result)
        if spike is None:
            parts.stepper.update(result)
            return None
        monitor = Monitor(parts.registry)
        if spike.action == "log":
            parts.stepper.update(result)
            return self.spikes.name_culprit(spike, monitor.measure())
        if result.is_finite:
            with undone(parts.model, parts.optimizer, parts.stepper.clip), self.diagnosis.paused():
                parts.stepper.update(result)
                spike = self.spikes.name_culprit(spike, monitor.measure())
        parts.optimizer.zero_grad()
        self.checkpoints.finish()  # the run may go back to it
        return self.spikes.leave_out(spike)

    def _log(self, result: StepResult) -> None:
        self.log.write(
            "train",
            self.done,
            tokens=self.done * self.per_step,
            loss=result.loss,
            cross_entropy=result.cross_entropy,
            z_loss=result.z_loss,
            grad_norm=result.grad_norm,
            lr=max(group["lr"] for group in self.parts.optimizer.param_groups),
            timing={**self.clock.lap(), "peak_memory": peak_memory(self.world.device)},
        )

    def _evaluate(self, interrupt: Interrupt) -> dict[Which, float]:
        """Evaluate and log; return the measures that are the best so far, by the checkpoint's name.

        Raises:
            EvaluationStopped: A stop was requested during the evaluation; nothing is logged.
        """
        parts, count = self.parts, self.settings.eval_batches
        parallel = self.settings.batch_size // self.settings.accumulation
        if count is not None:
            count *= self.settings.accumulation
        sets = parts.dataset.validation_sets(self._batch_spec(parallel), count)
        if not sets:
            return {}
        precision, compiled = self.settings.precision, bool(self.settings.compile)
        classes = parts.dataset.classes
        evaluations: dict[str, dict[str, float]] = {}
        with evaluation_weights(parts.optimizer, parts.model):
            for name, batches in sets.items():
                evaluation = evaluate(
                    parts.model,
                    parts.loss,
                    batches,
                    self.world,
                    precision,
                    classes,
                    compiled,
                    lambda: interrupt.requested,
                )
                self._require_finite("validation loss", evaluation.cross_entropy)
                evaluations[name] = {
                    key: value for key, value in evaluation._asdict().items() if value is not None
                }
                if (size := parts.dataset.bytes_per_target) is not None:
                    evaluations[name]["bits_per_byte"] = bits_per_byte(evaluation.cross_entropy, size)
        first = next(iter(evaluations.values()))
        by_file = {"by_file": evaluations} if len(evaluations) > 1 else {}
        self.log.write("validation", self.done, tokens=self.done * self.per_step, **first, **by_file)
        self.bar.validation(validation_in_words(first, parts.measure))
        values = {"best": first, **{f"best-{name}": metrics for name, metrics in evaluations.items() if name}}
        name = parts.measure.name
        found_by = {which: with_perplexity(metrics)[name] for which, metrics in values.items()}
        return self.checkpoints.improvements(found_by)

    def _save(self, best: Mapping[Which, float]) -> None:
        """Write a checkpoint, unless the last step made the weights non-finite."""
        self._learn()
        parameters = self.parts.model.parameters()
        self._require_finite("norm of the weights", global_norm(parameters).item())
        self.log.flush()
        self.checkpoints.save(
            self.done,
            self.parts.model,
            self.parts.optimizer,
            best,
            self.diagnosis.state(),
            {
                **self.spikes.state(),
                **self._clip_state(),
                **({CheckpointFolder.OWED: True} if self.owes_evaluation else {}),
            },
        )

    def _clip_state(self) -> JsonObject:
        state = self.parts.stepper.clip.state()
        return {CLIP: state} if state else {}

    def _require_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise DivergenceError(f"the {what} is {value}")


def sizes(parts: Parts) -> dict[str, float]:
    """The parameters, the bytes of the optimizer's state after a step, and what is known of the data."""
    of_data = {"train_units": parts.dataset.train_units, "overlap": parts.dataset.overlap}
    slots = [tensor for _, tensor in tensors_in(list(parts.optimizer.state.values()))]
    return {
        "parameters": sum(entry.spec.numel for entry in parts.registry),
        "optimizer_bytes": sum(slot.numel() * slot.element_size() for slot in slots),
        **{name: value for name, value in of_data.items() if value is not None},
    }
