"""The training loop: steps, evaluations, measurements, log lines and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from zoo.data.dataset import BatchSpec
from zoo.optim.averages import evaluation_weights
from zoo.optim.state import state_bytes
from zoo.run.job import Job
from zoo.train.async_copy import can_copy_async
from zoo.train.build import Parts
from zoo.train.checkpoints import CLIP, Checkpoints
from zoo.train.clock import Clock
from zoo.train.diagnosis import Diagnosis
from zoo.train.distributed import World
from zoo.train.evaluate import EvaluationStopped, bits_per_byte, evaluate
from zoo.train.interrupt import Interrupt
from zoo.train.lines import validation_in_words
from zoo.train.metrics import MetricsLog
from zoo.train.monitor import Monitor
from zoo.train.prefetch import Prefetcher
from zoo.train.progress import TrainingBar
from zoo.train.spikecontrol import SpikeControl
from zoo.train.spikes import Spike
from zoo.train.start import Start
from zoo.train.step import StepResult, global_norm, undone
from zoo.train.utilisation import peak_share
from zoo.utils.device import peak_memory
from zoo.utils.errors import DivergenceError
from zoo.utils.measures import with_perplexity
from zoo.utils.run_folder import CheckpointFolder, Which
from zoo.utils.untyped import JsonObject


class TrainingLoop:
    """The training loop, with its evaluations, measurements, log lines and checkpoints.

    If every step is taken whatever its measurements are, the host does not wait for the GPU: it reads the
    measurements of a step when the gradient of the next one has been queued, or earlier if something is
    written that depends on them.

    Attributes:
        done: number of steps done.
        began: number of steps that were done when this session began.
        owes_evaluation: whether the evaluation that follows the last step was not made.
        reads_late: whether the loop reads the measurements of a step only after the next gradient is queued.
        pending: a step that was taken and whose measurements were not read yet.
        read: the last measurements that were read.
    """

    def __init__(
        self,
        job: Job,
        parts: Parts,
        batches: Prefetcher,
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
        self.reads_late = can_copy_async(world.device) and spikes.takes_every_step
        self.pending: tuple[int, StepResult] | None = None
        self.read: StepResult | None = None
        self.done, self.owes_evaluation = start.step, start.owes_evaluation
        self.began = start.step
        self.per_step = self.settings.batch_size * parts.dataset.units_per_example
        self.clock = Clock(peak_share(job, world, parts.dataset.units_per_example))

    def run(self, interrupt: Interrupt, until: int) -> int:
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
            is_due = bool(best) or self._due(self.settings.checkpoint_every)
            if stopped or is_due:
                self._save(best, extra=not is_due)
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
        """Take one step and log it; return whether any rank was asked to stop, or cannot write files."""
        parts, every = self.parts, self.settings.monitor_every
        spec = self._batch_spec(self.settings.batch_size, self.spikes.rollback_state.skipped)
        schedule = zip(parts.scheduler.base_lrs, parts.scheduler.lr_lambdas, strict=True)
        for group, (lr, factor) in zip(parts.optimizer.param_groups, schedule, strict=True):
            group["lr"] = lr * factor(self.done) * self.spikes.lr_factor(self.done)
        self.done += 1
        monitor = Monitor(parts.registry) if every and self._due(every) else None
        self.diagnosis.begin(self.done)
        with self.clock.step(self.per_step):
            batch = self.batches.batch(spec)  # Where data limits the speed, the wait for it counts.
            buffers = [] if self.spikes.takes_every_step else buffers_of(parts.model)
            # Without a checkpoint all steps from here on would be lost: `_save` raises the error.
            result = parts.stepper.gradient(batch, lambda: interrupt.requested or self.checkpoints.failed)
            if monitor is not None:
                monitor.see_gradient()
            self._log_pending_spike()
            # The first step creates the slots; its numbers are read before it is taken.
            without_waiting = self.reads_late and self.read is not None
            spike = self._update_without_waiting(result) if without_waiting else self._update(result, buffers)
        if self.done == self.began + 1:
            self.checkpoints.require_room(parts.model, parts.optimizer)
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

    def _update_without_waiting(self, result: StepResult) -> Spike | None:
        """Take a step without waiting for its measurements, unless they are needed right after it.

        Returns:
            The spike, if the measurements were read and the step is one.

        Raises:
            DivergenceError: The measurements were read and are not finite.
        """
        self.checkpoints.release()
        self.pending = (self.done, result)
        self.parts.stepper.update(result, pending=True)
        return self._read_pending() if self._must_read_now else None

    @property
    def _must_read_now(self) -> bool:
        """Whether something is written after the current step that depends on its measurements."""
        settings = self.settings
        regular = settings.log_every, settings.eval_every, settings.checkpoint_every
        intervals = (*regular, *([settings.monitor_every] if settings.monitor_every else []))
        return self.diagnosis.due or any(map(self._due, intervals))

    def _read_pending(self) -> Spike | None:
        """Read and judge the measurements of a step that was taken before they had arrived.

        Returns:
            The spike, if the step is one; the matrix that moved most is no longer known.

        Raises:
            DivergenceError: The loss or the gradient is not finite. Later computations are dropped.
        """
        if self.pending is None:
            return None
        (step, result), self.pending = self.pending, None
        spike = self.spikes.judge(step, result)
        if not result.is_finite:
            self.done = step
        result.require_finite()
        self.read = result
        return spike

    def _log_pending_spike(self) -> None:
        """Read the pending measurements, if there are any, and log the spike that they show."""
        if (spike := self._read_pending()) is not None:
            self.log.write("spike", spike.at, **spike.record())

    def _update(self, result: StepResult, buffers: Sequence[Tensor]) -> Spike | None:
        """Judge the measurements of a gradient, then take the step, skip it, or start a rollback.

        A spike whose action is `log` is a normal step. If the action is `skip` or `rollback`, weights,
        buffers and optimizer stay unchanged: the step is tried and undone, to name the matrix that it would
        have moved most.

        Args:
            result: the measurements of the gradient.
            buffers: copies of the model's buffers from before the forward pass, which may have changed them
                (running statistics, the largest logits of QK-clip, the state that an LSTM carries).

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
        for buffer, before in zip(parts.model.buffers(), buffers, strict=True):
            buffer.copy_(before)
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

    def _save(self, best: Mapping[Which, float], extra: bool) -> None:
        """Write a checkpoint, unless the last step made weights or buffers non-finite.

        Args:
            best: the values of the measure that are the best so far, by the name of the checkpoint.
            extra: whether the checkpoint is written only because the run is stopped.
        """
        self._log_pending_spike()
        parameters = self.parts.model.parameters()
        self._require_finite("norm of the weights", global_norm(parameters).item())
        buffers = [buffer for buffer in self.parts.model.buffers() if buffer.is_floating_point()]
        self._require_finite("norm of the buffers", global_norm(buffers).item())
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
                **({CheckpointFolder.EXTRA: True} if extra else {}),
            },
        )

    def _clip_state(self) -> JsonObject:
        state = self.parts.stepper.clip.state()
        return {CLIP: state} if state else {}

    def _require_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise DivergenceError(f"the {what} is {value}")


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Copies of a model's buffers."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def sizes(parts: Parts) -> dict[str, float]:
    """The parameters, the bytes of the optimizer's state after a step, and what is known of the data."""
    of_data = {"train_units": parts.dataset.train_units, "overlap": parts.dataset.overlap}
    return {
        "parameters": sum(entry.spec.numel for entry in parts.registry),
        "optimizer_bytes": state_bytes(parts.optimizer),
        **{name: value for name, value in of_data.items() if value is not None},
    }
