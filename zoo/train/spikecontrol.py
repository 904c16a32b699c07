"""Actions on a loss spike: log it, skip its batch, or roll the run back to a checkpoint.

The state that these decisions depend on is in the checkpoints, so a resumed run takes the same steps. The
steps themselves are taken by the training loop, `zoo.train.loop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from zoo.run.train_config import AT_MOST, COOL_FACTOR, COOL_STEPS, SpikeConfig
from zoo.train.distributed import World
from zoo.train.spikes import Detector, Spike
from zoo.train.start import Start
from zoo.train.step import StepResult
from zoo.utils.errors import CheckpointError, DivergenceError
from zoo.utils.run_folder import CheckpointFolder, RunFolder
from zoo.utils.untyped import JsonObject

KEY = "spikes"
"""Key of the spike control's state in a checkpoint's state.json."""


@dataclass(frozen=True)
class RollbackState:
    """The effect of a run's rollbacks on later steps.

    Attributes:
        skipped: number of batches that were left out: step s uses the batch of step s + `skipped`.
        cool_until: last step of the reduced learning rate.
        streak: number of rollbacks in a row before that step was passed; the rate is reduced as many times.
        rollbacks: the records of the spikes that caused rollbacks.
    """

    skipped: int = 0
    cool_until: int = 0
    streak: int = 0
    rollbacks: tuple[JsonObject, ...] = field(default=())


class Rollback(Exception):  # noqa: N818 - it is no error
    """Raised to leave the training loop; training then continues from an earlier checkpoint."""

    def __init__(self, spike: Spike, state: RollbackState, settings: SpikeConfig) -> None:
        super().__init__(f"step {spike.at}: back to the last checkpoint")
        self.spike, self.state, self.settings = spike, state, settings


class SpikeControl:
    """Judges the gradient of every step, and chooses the action on a spike. It takes no step itself.

    Attributes:
        rollback_state: the effect of earlier rollbacks.
    """

    def __init__(
        self, settings: SpikeConfig | None, checkpoint: CheckpointFolder | None, run: RunFolder, world: World
    ) -> None:
        """Restore the state of an earlier session.

        Args:
            settings: `train.spikes`; None: no step is a spike.
            checkpoint: the checkpoint from which the session starts; None: it starts at the first step.
            run: the run folder.
            world: the ranks, which decide together.
        """
        self._settings, self._run, self._world = settings or SpikeConfig(), run, world
        state: JsonObject = checkpoint.read_state().get(KEY, {}) if checkpoint else {}
        try:
            self.rollback_state = RollbackState(**state.get("position", {}))
            self._usual_ratios: dict[str, float] = dict(state.get("usual", {}))
            self._detector = None if settings is None else Detector(settings, state)
            self._earlier = {"episode": int(state.get("episode", 0))} if state else {}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint}: the entry '{KEY}' of its state is damaged: {error}"
            ) from error

    @property
    def takes_every_step(self) -> bool:
        """Whether spikes are taken like other steps, so that they can be judged afterwards."""
        return self._detector is None or self._settings.action == "log"

    @staticmethod
    def rollback_records(checkpoint: CheckpointFolder | None) -> list[JsonObject]:
        """The records of the spikes that caused rollbacks of a run, up to one of its checkpoints."""
        state = checkpoint.read_state().get(KEY, {}) if checkpoint else {}
        return list(state.get("position", {}).get("rollbacks", ()))

    def lr_factor(self, step: int) -> float:
        """Factor of the learning rate in step `step` + 1: below 1 for a while after a rollback."""
        if self._detector is None or step >= self.rollback_state.cool_until:
            return 1.0
        return float((self._settings.cool_factor or COOL_FACTOR) ** self.rollback_state.streak)

    def set_usual(self, matrices: Mapping[str, Mapping[str, float | None]]) -> None:
        """Store the update ratios of a `Monitor`, with which those of a spike are compared."""
        ratios = {name: row["update_ratio"] for name, row in matrices.items()}
        self._usual_ratios = {name: ratio for name, ratio in ratios.items() if ratio}

    def judge(self, step: int, result: StepResult) -> Spike | None:
        """Return the spike with its `action` if a step is one, otherwise None.

        Args:
            step: number of the step, from 1.
            result: loss and norm of the gradient; the same on all ranks.
        """
        if self._detector is None:
            return None
        return self._detector.judge(step, result.cross_entropy, result.grad_norm)

    def name_culprit(self, spike: Spike, matrices: Mapping[str, Mapping[str, float | None]]) -> Spike:
        """Add the matrix whose update ratio has risen most over its usual one.

        Args:
            spike: the spike.
            matrices: the measurements of a `Monitor` for the step of the spike.
        """
        ratios = {name: ratio for name, row in matrices.items() if (ratio := row["update_ratio"])}
        usual = self._usual_ratios
        rises = {name: ratio / usual[name] for name, ratio in ratios.items() if name in usual}
        ranked = rises or ratios
        if not ranked:
            return spike
        name = max(ranked, key=lambda name: ranked[name])
        return replace(spike, culprit=name, update_ratio=ratios[name], update_rise=rises.get(name))

    def leave_out(self, spike: Spike) -> Spike:
        """Decide what is dropped with a step that is not taken: its batch, or all since a checkpoint.

        Returns:
            The spike with the action `skip`, which it also is if there is no checkpoint to go back to.

        Raises:
            Rollback: Training is to continue from an earlier checkpoint.
            DivergenceError: Too many steps in a row were skipped, or the run was rolled back too often.
        """
        settings, state = self._settings, self.rollback_state
        # The main rank has written the checkpoints: on others a network file system may not show them yet.
        if spike.action == "rollback" and self._world.gather(bool(_targets(self._run)))[0]:
            at_most = settings.at_most or AT_MOST
            if len(state.rollbacks) < at_most:
                raise Rollback(spike, state, settings)
            raise DivergenceError(
                f"after going back {at_most} times the loss spikes again (train.spikes.at_most)"
            )
        if spike.length >= settings.window:
            raise DivergenceError(f"{spike.length} steps in a row were left out (train.spikes.action: skip)")
        return replace(spike, action="skip")

    def state(self) -> JsonObject:
        """The entry of a checkpoint's state.json.

        Without spike detection it is what an earlier session with a detector has left: batches that were
        left out stay so, and a later session can detect spikes again. It is empty if there is nothing.
        """
        known = {"usual": self._usual_ratios, "position": asdict(self.rollback_state)}
        if self._detector is not None:
            return {KEY: {**self._detector.state(), **known}}
        return {KEY: {**self._earlier, **known}} if self._earlier else {}


def _targets(run: RunFolder) -> list[CheckpointFolder]:
    """The checkpoints that a run may go back to, in the order of their steps.

    A checkpoint that was written because the run was stopped is none of them, so that a run which was
    stopped and resumed goes back to the same step as one that never was.
    """
    if (last := run.checkpoint()) is None:
        return []
    before = (folder for folder in run.checkpoints() if folder.named_step <= last.named_step)
    return [folder for folder in before if not folder.is_extra]


def go_back(rollback: Rollback, run: RunFolder, world: World, every: int) -> Start:
    """Make a checkpoint before a spike the last one of the run, and skip the batches after it.

    The run goes back to the last checkpoint. If the spike comes soon after another rollback, which then did
    not help, it goes back to the previous one, if that is kept. A checkpoint that is kept only as the best
    one may be much older; the run does not go back to it.

    Args:
        rollback: the spike, and the effect of earlier rollbacks.
        run: the run folder; the decision is written into the checkpoint.
        world: the ranks; the main one writes.
        every: the number of steps between two checkpoints.

    Returns:
        The start from which training continues.
    """
    world.on_main(lambda: _repoint(rollback, run, every))
    return Start.at_last_checkpoint(run)


def _repoint(rollback: Rollback, run: RunFolder, every: int) -> None:
    """Write the decision of `go_back` into the checkpoint, and make it the last one of the run."""
    spike, before, settings = rollback.spike, rollback.state, rollback.settings
    again = spike.at <= before.cool_until
    *earlier, target = _targets(run)  # without any the spike's batch was skipped
    if again and earlier and target.named_step - earlier[-1].named_step <= every:
        target = earlier[-1]
    after = RollbackState(
        skipped=before.skipped + spike.at - target.step,
        cool_until=target.step + (settings.cool_steps or COOL_STEPS),
        streak=before.streak + 1 if again else 1,
        rollbacks=(*before.rollbacks, spike.record()),
    )
    state = target.read_state()
    state[KEY] = {**state.get(KEY, {}), "position": asdict(after), "episode": spike.episode}
    target.write_state(state)
    # The rollback is done at this point; `MetricsLog` adds the record of the spike from the state.
    run.point("last", target)
    run.trim_to_last_checkpoint()
