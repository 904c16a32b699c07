"""Curves of a measure over the course of a run, as functions of each cost of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zoo.utils.arrays import Array
from zoo.utils.run_folder import Record

READ = "tokens (of other data: texts, examples or images)"
"""What training reads, in words; `tokens` of a `Curve` counts it."""
COSTS = ("steps", "tokens", "flops", "seconds")
"""The costs of training, which are the fields of `Curve` other than the values."""


@dataclass(frozen=True)
class Curve:
    """Values in the order of the steps; every field is a float64 array of the same length.

    Attributes:
        steps: the number of optimizer steps before the value was measured.
        tokens: what these steps have read: tokens, or of other data texts, examples or images.
        flops: the floating point operations of these steps, those of the optimizer included, see
            `zoo.run.flops.run_flops`.
        seconds: the time of these steps; evaluations and checkpoints are not counted.
        values: the values of the measure, for instance the loss in nats per target.
    """

    steps: Array
    tokens: Array
    flops: Array
    seconds: Array
    values: Array

    def __len__(self) -> int:
        return len(self.values)

    @property
    def total(self) -> dict[str, float]:
        """The costs of the whole run, up to the last point."""
        return {cost: float(getattr(self, cost)[-1]) for cost in COSTS}

    def reach(self, target: float, lower_is_better: bool = True) -> dict[str, float] | None:
        """The costs until a value is reached for the first time.

        Args:
            target: the value.
            lower_is_better: whether the value is reached from above.

        Returns:
            The costs, linearly interpolated between the last point that is worse than the target and the
            first one that is not; None if all points are worse, because nothing is extrapolated.
        """
        reached = np.flatnonzero(self.values <= target if lower_is_better else self.values >= target)
        if not reached.size:
            return None
        after = int(reached[0])
        before = max(after - 1, 0)
        change = self.values[before] - self.values[after]
        share = (self.values[before] - target) / change if change else 0.0
        ends = {cost: (getattr(self, cost)[before], getattr(self, cost)[after]) for cost in COSTS}
        return {cost: float(low + share * (high - low)) for cost, (low, high) in ends.items()}


def read_curve(records: Sequence[Record], train: Sequence[Record], flops: float) -> Curve:
    """A curve from lines of metrics.jsonl.

    Args:
        records: the lines with the losses, in order; the values are their cross entropies.
        train: the lines of kind "train", which have the training speed.
        flops: operations of a training step.
    """
    steps, tokens, loss = (_column(records, key) for key in ("step", "tokens", "cross_entropy"))
    return Curve(steps, tokens, flops * steps, _seconds(steps, train), loss)


def _seconds(steps: Array, train: Sequence[Record]) -> Array:
    """Seconds of training until each step, linear between log lines; NaN where no time was logged.

    They are computed from the speed between log lines, since the logged seconds start at 0 in every session.
    """
    if not train:
        return np.full_like(steps, np.nan)
    speed = np.array([line["timing"]["tokens_per_second"] for line in train], dtype=np.float64)
    passed = np.cumsum(np.diff(_column(train, "tokens"), prepend=0) / speed)
    return np.interp(steps, [0, *_column(train, "step")], [0, *passed], right=np.nan)


def _column(records: Sequence[Record], key: str) -> Array:
    return np.array([record[key] for record in records], dtype=np.float64)
