"""What is done about a loss spike: write it down, leave the batch out, or go back.

Everything that decides is part of the checkpoints, so a run that resumes takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from zoo.init import Registry
from zoo.optim.state import restore, snapshot
from zoo.run.train_config import SpikeConfig
from zoo.train.distributed import World
from zoo.train.metrics import MetricsLog
from zoo.train.monitor import Monitor
from zoo.train.spikes import Detector, Spike
from zoo.train.start import Start
from zoo.train.step import Stepper, StepResult
from zoo.utils.errors import DivergenceError
from zoo.utils.run_folder import CheckpointFolder, RunFolder

KEY = "spikes"
"""Of the state in a checkpoint's state.json."""
COOL_STEPS = 100
COOL_FACTOR = 0.5
AT_MOST = 10


@dataclass(frozen=True)
class Position:
    """Where a run stands after going back.

    Attributes:
        skipped: batches that were left out: a step uses the batch of the step so much later.
        cool_until: the last step of the lower rate.
        streak: how often the run has gone back without getting past that step; so often is the rate cut.
        rollbacks: the spikes that a run went back for.
    """

    skipped: int = 0
    cool_until: int = 0
    streak: int = 0
    rollbacks: tuple[dict[str, Any], ...] = field(default=())


class Rollback(Exception):  # noqa: N818 - nothing has failed
    """Training goes on from the last checkpoint."""

    def __init__(self, spike: Spike, position: Position) -> None:
        super().__init__(f"step {spike.at}: back to the last checkpoint")
        self.spike, self.position = spike, position


class SpikeControl:
    """Looks at every step before it is taken.

    Attributes:
        position: where the run stands.
    """

    def __init__(
        self,
        settings: SpikeConfig | None,
        registry: Registry,
        stepper: Stepper,
        checkpoint: CheckpointFolder | None,
        run: RunFolder,
    ) -> None:
        """Prepare.

        Args:
            settings: when and what; None: every finite step is taken.
            registry: the variables.
            stepper: takes the steps.
            checkpoint: where the session begins, which holds the state of an earlier one; None: at the start.
            run: its folder.
        """
        self._settings, self._registry, self._stepper, self._run = settings, registry, stepper, run
        state: dict[str, Any] = checkpoint.read_state().get(KEY, {}) if checkpoint else {}
        self.position = Position(**state.get("position", {}))
        self._usual: dict[str, float] = state.get("usual", {})
        self._detector = None if settings is None else Detector(settings, state)

    def rate(self, step: int) -> float:
        """Factor of the learning rate in the step after `step`."""
        if self._settings is None or step >= self.position.cool_until:
            return 1.0
        return float((self._settings.cool_factor or COOL_FACTOR) ** self.position.streak)

    def remember(self, matrices: Mapping[str, Mapping[str, float | None]]) -> None:
        """Take what a `Monitor` measured for the usual update ratios."""
        ratios = {name: row["update_ratio"] for name, row in matrices.items()}
        self._usual = {name: ratio for name, ratio in ratios.items() if ratio}

    def take(self, step: int, result: StepResult) -> Spike | None:
        """Take the step whose gradient is there, or not.

        Args:
            step: its number, from 1.
            result: what was measured so far; the same on all ranks.

        Returns:
            The spike that it is, if it is one.

        Raises:
            Rollback: the run is to go back.
            DivergenceError: a loss or gradient that is not finite and no way around it.
        """
        spike = None
        if self._detector is not None:
            spike = self._detector.judge(step, result.cross_entropy, result.grad_norm)
        if spike is None:
            self._stepper.update(result)
            return None
        if spike.action == "log":
            return self._blame(spike, result)
        if result.is_finite:
            with self._undone():
                spike = self._blame(spike, result)
        self._stepper.drop()
        return self._go_back(spike) if spike.action == "rollback" else self._skip(spike)

    def _skip(self, spike: Spike) -> Spike:
        """Leave the step out.

        Raises:
            DivergenceError: nothing but spikes for too long.
        """
        assert self._settings is not None
        if spike.length >= self._settings.window:
            raise DivergenceError(f"{spike.length} steps in a row were left out (train.spikes.action: skip)")
        return replace(spike, action="skip")

    def _blame(self, spike: Spike, result: StepResult) -> Spike:
        """Take the step and name the matrix whose update ratio rose most."""
        monitor = Monitor(self._registry)
        self._stepper.update(result)
        measured = {name: row["update_ratio"] for name, row in monitor.measure().items()}
        ratios = {name: ratio for name, ratio in measured.items() if ratio}
        rises = {name: ratio / self._usual[name] for name, ratio in ratios.items() if name in self._usual}
        ranked = rises or ratios
        if not ranked:
            return spike
        name = max(ranked, key=lambda name: ranked[name])
        return replace(spike, culprit=name, update_ratio=ratios[name], update_rise=rises.get(name))

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Put weights, buffers and slots back to what they were."""
        model, optimizer = self._stepper.model, self._stepper.optimizer
        tensors = [*model.parameters(), *model.buffers()]
        before = [t.detach().clone() for t in tensors]
        slots = snapshot(optimizer)
        yield
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
        restore(optimizer, slots)

    def _go_back(self, spike: Spike) -> Spike:
        """Leave this step for the last checkpoint, or leave it out if there is none yet.

        Raises:
            Rollback: there is one.
            DivergenceError: it has been tried too often.
        """
        assert self._settings is not None
        if self._run.checkpoint() is None:
            return self._skip(spike)
        at_most = self._settings.at_most or AT_MOST
        if len(self.position.rollbacks) >= at_most:
            raise DivergenceError(
                f"after going back {at_most} times the loss spikes again (train.spikes.at_most)"
            )
        raise Rollback(spike, self.position)

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold, as JSON."""
        if self._detector is None:
            return {}
        return {KEY: {**self._detector.state(), "usual": self._usual, "position": asdict(self.position)}}


def go_back(settings: SpikeConfig, rollback: Rollback, run: RunFolder, world: World) -> Start:
    """Let a run go on behind a spike, from a checkpoint before it.

    That is the last one; if the run went back a short while ago, it did not help, and one more is given
    up, as far as they are kept.

    Args:
        settings: those of the run.
        rollback: the spike, and where the run stood.
        run: its folder; the decision is written into the checkpoint.
        world: the ranks; the main one writes.

    Returns:
        Where it goes on.
    """
    if world.is_main:
        spike, before = rollback.spike, rollback.position
        again = spike.at <= before.cool_until
        kept = list(run.checkpoints())
        target = kept[-2] if again and len(kept) > 1 else kept[-1]
        position = Position(
            skipped=before.skipped + spike.at - target.step,
            cool_until=target.step + (settings.cool_steps or COOL_STEPS),
            streak=before.streak + 1 if again else 1,
            rollbacks=(*before.rollbacks, spike.record()),
        )
        state = target.read_state()
        state[KEY] = {**state.get(KEY, {}), "position": asdict(position), "episode": spike.episode}
        target.write_state(state)
        run.forget_after(target)
        with MetricsLog(run, Start(target.step, target)) as log:
            log.write("spike", target.step, **spike.record())
    world.wait()
    return Start.at_last_checkpoint(run)
