"""Estimating the remaining time of work whose stages have different costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Stage:
    """A stage: its amount of work, the amount done, and the part whose time was measured."""

    total: int
    done: int = 0
    reported: bool = False
    measured: int = 0
    seconds: float = 0.0


class Pace:
    """Computes the share of the work that is done, and the seconds that the rest will take.

    The time between two reports is that of the work of the second one. The first report of a stage does not
    count, because it includes one-time work such as fetching memory and choosing kernels. A stage that has
    not been measured yet may cost any time, so that there is no estimate before every stage has had two
    reports. A program with several stages therefore begins each of them before it continues with the first.
    """

    def __init__(self, totals: Sequence[int], now: float) -> None:
        """Begin to measure.

        Args:
            totals: the amount of work of each stage, in any unit.
            now: the time, in seconds.
        """
        self._stages = [_Stage(total) for total in totals]
        self._last = now

    def add(self, done: int, stage: int, now: float) -> None:
        """Record that an amount of a stage has been done since the last call."""
        s = self._stages[stage]
        if s.reported:
            s.measured += done
            s.seconds += now - self._last
        s.done, s.reported = s.done + done, True
        self._last = now

    @property
    def share(self) -> float:
        """The share of all work that is done, 0 to 1."""
        total = sum(s.total for s in self._stages)
        return min(1.0, sum(s.done for s in self._stages) / total) if total else 1.0

    @property
    def left(self) -> float | None:
        """The seconds that the rest will take; None: they cannot be estimated yet."""
        unfinished = [s for s in self._stages if s.done < s.total]
        if any(not s.measured for s in unfinished):
            return None
        return sum((s.total - s.done) * s.seconds / s.measured for s in unfinished)
