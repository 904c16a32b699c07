"""A loss over the course of a run, against everything that a run costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

COSTS = ("steps", "tokens", "flops", "seconds")
"""What a loss is drawn against, and what is counted until a loss is reached."""


@dataclass(frozen=True)
class Curve:
    """Losses in the order of the steps; every field is a float64 array of the same length.

    Attributes:
        steps: optimizer steps done.
        tokens: targets of training until then: tokens of text, or images.
        flops: floating point operations of training until then, see `zoo.run.explanation.flops_per_target`.
        seconds: of training steps until then; evaluations and checkpoints are not counted.
        loss: nats per target.
    """

    steps: Numbers
    tokens: Numbers
    flops: Numbers
    seconds: Numbers
    loss: Numbers

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def total(self) -> dict[str, float]:
        """The costs of the whole run, up to the last point."""
        return {cost: float(getattr(self, cost)[-1]) for cost in COSTS}

    def reach(self, loss: float) -> dict[str, float] | None:
        """The costs until a loss is reached for the first time.

        Args:
            loss: the target.

        Returns:
            Costs, linear between the point before and the point at or below the target; None if no
            point is: nothing is extrapolated.
        """
        below = np.flatnonzero(self.loss <= loss)
        if not below.size:
            return None
        last = int(below[0])
        before = max(last - 1, 0)
        fall = self.loss[before] - self.loss[last]
        share = (self.loss[before] - loss) / fall if fall else 0.0
        sides = {cost: (getattr(self, cost)[before], getattr(self, cost)[last]) for cost in COSTS}
        return {cost: float(low + share * (high - low)) for cost, (low, high) in sides.items()}


def read_curve(records: Sequence[Mapping[str, Any]], clock: Sequence[Mapping[str, Any]], flops: int) -> Curve:
    """A curve from lines of metrics.jsonl.

    Args:
        records: the lines with the losses, in order.
        clock: the lines of kind train, which hold the time.
        flops: operations per target, forward and backward.
    """
    steps, tokens, loss = (_column(records, key) for key in ("step", "tokens", "cross_entropy"))
    return Curve(steps, tokens, flops * tokens, _seconds(steps, clock), loss)


def _seconds(steps: Numbers, clock: Sequence[Mapping[str, Any]]) -> Numbers:
    """Seconds of training until steps, linear between log lines; NaN where no time was logged.

    They are added up from the speed of each stretch, since `seconds` start anew when a run is resumed.
    """
    if not clock:
        return np.full_like(steps, np.nan)
    speed = np.array([line["timing"]["tokens_per_second"] for line in clock], dtype=np.float64)
    passed = np.cumsum(np.diff(_column(clock, "tokens"), prepend=0) / speed)
    return np.interp(steps, [0, *_column(clock, "step")], [0, *passed], right=np.nan)


def _column(records: Sequence[Mapping[str, Any]], key: str) -> Numbers:
    return np.array([record[key] for record in records], dtype=np.float64)
