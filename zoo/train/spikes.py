"""Loss spikes: the test that detects them.

A number is compared with the median of the numbers before it, in units of their median absolute deviation
(scaled to the standard deviation of a normal distribution), which a few spikes do not disturb.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from statistics import median

from zoo.run.train_config import SpikeAction, SpikeConfig
from zoo.utils.untyped import JsonObject

NORMAL = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
FLOOR = 1e-3
"""Lower limit of the scale relative to the median, so that small changes of a constant are no spikes."""
FEWEST = 20
"""Number of steps before the first one that can be a spike."""


@dataclass(frozen=True)
class Spike:
    """A step whose loss or gradient is far above those of the steps before it.

    Attributes:
        at: the step, counted from 1.
        what: the number that spikes, "loss" or "grad_norm".
        value: the loss or the norm of this step; None: it is not finite.
        usual: the median over the steps before; None: there were too few.
        z: number of robust standard deviations by which `value` exceeds `usual`; for the norm of the
            gradient, of its logarithm.
        depth: difference of the loss and its median in nats per target; None: the loss is not finite.
        episode: number of the spike in its run, from 1; consecutive steps are one spike.
        length: number of steps of the spike so far.
        action: the action that was taken.
        culprit: the matrix whose update ratio rose most over its usual one.
        update_ratio: ||dW|| / ||W|| of that matrix in this step, or the value that a skipped step would have
            had.
        update_rise: `update_ratio` over its usual value; None: there is no earlier measurement.
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
        """A line for the console."""
        value = "not a number" if self.value is None else f"{self.value:.4g}, usually {self.usual:.4g}"
        moved = f", {self.culprit} moved most" if self.culprit else ""
        return f"{self.what} {value}{moved}"

    def record(self) -> JsonObject:
        """The fields, for a line of metrics.jsonl."""
        return asdict(self)


class History:
    """A window of the last numbers, with which the next number is compared."""

    def __init__(self, length: int, numbers: list[float], logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self.numbers = deque(numbers, maxlen=length)
        self._seen = deque(map(self._scaled, numbers), maxlen=length)

    def append(self, value: float) -> None:
        """Add a number, which replaces the oldest one of a full window."""
        self.numbers.append(value)
        self._seen.append(self._scaled(value))

    def z(self, value: float) -> float | None:
        """The robust z-score of `value`; None if the window has too few numbers."""
        if len(self._seen) < FEWEST:
            return None
        middle = median(self._seen)
        spread = NORMAL * median([abs(number - middle) for number in self._seen])
        return (self._scaled(value) - middle) / max(spread, FLOOR * abs(middle), math.ulp(1.0))

    @property
    def usual(self) -> float | None:
        """The median; None if the window has too few numbers."""
        return median(self.numbers) if len(self.numbers) >= FEWEST else None

    def _scaled(self, number: float) -> float:
        return math.log(max(number, math.ulp(0.0))) if self._logarithmic else number


class Detector:
    """Detects spikes, one step after the other."""

    def __init__(self, settings: SpikeConfig, state: JsonObject) -> None:
        """Restore the windows of an earlier session.

        Args:
            settings: the threshold and the length of the window.
            state: the `state` of the earlier session; empty for a new run.
        """
        self._settings = settings
        self._loss = History(settings.window, state.get("losses", []), logarithmic=False)
        self._norm = History(settings.window, state.get("norms", []), logarithmic=True)
        self._episode: int = state.get("episode", 0)
        self._first, self._last = state.get("first", 0), state.get("last", -1)

    def judge(self, step: int, loss: float, grad_norm: float) -> Spike | None:
        """Return the spike if a step is one, otherwise None.

        Finite numbers enter the windows in any case, so that a new level of the loss becomes the usual one.

        Args:
            step: number of the step, from 1.
            loss: cross entropy of the step in nats per target.
            grad_norm: global norm of the gradient of the step before clipping.
        """
        judged = [("loss", loss, self._loss), ("grad_norm", grad_norm, self._norm)]
        if finite := math.isfinite(loss) and math.isfinite(grad_norm):
            scored = [(what, value, window, window.z(value)) for what, value, window in judged]
            spiking = [s for s in scored if s[3] is not None and s[3] > self._settings.threshold]
        else:
            spiking = [(*one, None) for one in judged if not math.isfinite(one[1])]
        spike = self._spike(step, loss, spiking) if spiking else None
        if finite:
            self._loss.append(loss)
            self._norm.append(grad_norm)
        return spike

    def _spike(
        self, step: int, loss: float, spiking: list[tuple[str, float, History, float | None]]
    ) -> Spike:
        """The spike of a step, described by the number with the largest z-score."""
        if step != self._last + 1:
            self._episode, self._first = self._episode + 1, step
        self._last = step
        what, value, window, z = max(spiking, key=lambda s: s[3] or 0.0)
        usual = self._loss.usual
        depth = max(0.0, loss - usual) if usual is not None and math.isfinite(loss) else None
        known = value if math.isfinite(value) else None
        length, action = step - self._first + 1, self._settings.action
        return Spike(step, what, known, window.usual, z, depth, self._episode, length, action)

    def state(self) -> JsonObject:
        """The state that a later session needs to continue, as plain data."""
        return {
            "losses": list(self._loss.numbers),
            "norms": list(self._norm.numbers),
            "episode": self._episode,
            "first": self._first,
            "last": self._last,
        }
