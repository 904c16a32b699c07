"""Loss spikes: what counts as one, and which matrix moved when it came.

A number is compared with the median of those before it, in units of their median absolute deviation
(scaled to the standard deviation of a normal distribution), which a few spikes do not disturb.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from zoo.run.train_config import SpikeAction, SpikeConfig

NORMAL = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
FLOOR = 1e-3
"""Least scale that is believed, relative to the median: numbers that hardly change spike at nothing."""
FEWEST = 20
"""Steps to be seen before one is judged."""


@dataclass(frozen=True)
class Spike:
    """A step whose loss or gradient is far above those before it.

    Attributes:
        at: the step, counted from 1.
        what: "loss" or "grad_norm".
        value: of this step; None: not a finite number.
        usual: the median of the steps before; None: too few were seen.
        z: how many robust standard deviations `value` lies above `usual`, for the gradient in its
            logarithm.
        depth: how far the loss lies above its median in nats per token; None: not a finite number.
        episode: number of the spike in its run, from 1; steps that follow each other are one spike.
        length: how many steps it has taken so far.
        action: what was done.
        culprit: the matrix whose update ratio had risen most over its usual one.
        update_ratio: ||dW|| / ||W|| of that matrix in this step, or what it would have been.
        update_rise: that over its usual one; None: it was not measured before.
    """

    at: int
    what: str
    value: float | None
    usual: float | None
    z: float | None
    depth: float | None
    episode: int
    length: int
    action: SpikeAction
    culprit: str | None = None
    update_ratio: float | None = None
    update_rise: float | None = None

    def __str__(self) -> str:
        """What happened, in words."""
        value = "not a number" if self.value is None else f"{self.value:.4g}, usually {self.usual:.4g}"
        moved = f", {self.culprit} moved most" if self.culprit else ""
        return f"{self.what} {value}{moved}"

    def record(self) -> dict[str, Any]:
        """The fields, for a line of metrics.jsonl."""
        return asdict(self)


class History:
    """The last numbers of one kind, and how unusual the next one is."""

    def __init__(self, length: int, numbers: list[float], logarithmic: bool) -> None:
        self.numbers = deque(numbers, maxlen=length)
        self._logarithmic = logarithmic

    def z(self, value: float) -> float | None:
        """How far above the usual `value` is; None after too few numbers."""
        if len(self.numbers) < FEWEST:
            return None
        seen = [self._scaled(number) for number in self.numbers]
        middle = median(seen)
        spread = NORMAL * median(abs(number - middle) for number in seen)
        return (self._scaled(value) - middle) / max(spread, FLOOR * abs(middle), math.ulp(1.0))

    @property
    def usual(self) -> float | None:
        """The median; None after too few numbers."""
        return median(self.numbers) if len(self.numbers) >= FEWEST else None

    def _scaled(self, number: float) -> float:
        return math.log(max(number, math.ulp(0.0))) if self._logarithmic else number


class Detector:
    """Judges step after step."""

    def __init__(self, settings: SpikeConfig, state: dict[str, Any]) -> None:
        """Start, or go on.

        Args:
            settings: the threshold and the length of the window.
            state: of an earlier session, from `state`; empty at the start.
        """
        self._settings = settings
        self._loss = History(settings.window, state.get("losses", []), logarithmic=False)
        self._norm = History(settings.window, state.get("norms", []), logarithmic=True)
        self._episode: int = state.get("episode", 0)
        self._first, self._last = state.get("first", 0), state.get("last", -1)

    def judge(self, step: int, loss: float, grad_norm: float) -> Spike | None:
        """Whether a step is a spike.

        It is remembered either way, if finite, so that a new level of the loss becomes the usual one.

        Args:
            step: counted from 1.
            loss: its cross entropy in nats per target.
            grad_norm: global norm of its gradient before clipping.
        """
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        usual = self._loss.usual
        judged = [("loss", loss, self._loss), ("grad_norm", grad_norm, self._norm)]
        found = [(what, value, h.usual, h.z(value) if finite else None) for what, value, h in judged]
        if finite:
            self._loss.numbers.append(loss)
            self._norm.numbers.append(grad_norm)
            found = [f for f in found if f[3] is not None and f[3] > self._settings.threshold]
        else:
            found = [f for f in found if not math.isfinite(f[1])]
        if not found:
            return None
        if step != self._last + 1:
            self._episode, self._first = self._episode + 1, step
        self._last = step
        what, value, middle, z = max(found, key=lambda f: f[3] or 0.0)
        depth = max(0.0, loss - usual) if usual is not None and math.isfinite(loss) else None
        known = value if math.isfinite(value) else None
        length, action = step - self._first + 1, self._settings.action
        return Spike(step, what, known, middle, z, depth, self._episode, length, action)

    def state(self) -> dict[str, Any]:
        """What a later session needs to judge alike, as JSON."""
        return {
            "losses": list(self._loss.numbers),
            "norms": list(self._norm.numbers),
            "episode": self._episode,
            "first": self._first,
            "last": self._last,
        }
