"""How long work takes whose stages have costs of their own, estimated while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Stage:
    """A stage: its amount of work, what is done of it, and the part whose time counts."""

    total: int
    done: int = 0
    reported: bool = False
    measured: int = 0
    seconds: float = 0.0


class Pace:
    """The share of the work that is done, and the seconds that the rest will take.

    The time between two reports is that of the second one's work. The first report of a stage does not
    count, as it includes what is done once: memory is fetched, kernels are chosen. A stage that has not been
    measured yet may cost anything, so that there is no estimate before every stage has had two reports. A
    program with several stages therefore begins each of them before it goes on with the first.
    """

    def __init__(self, totals: Sequence[int], now: float) -> None:
        """Begin.

        Args:
            totals: the amount of work of each stage, in any unit.
            now: the time, in seconds.
        """
        self._stages = [_Stage(total) for total in totals]
        self._last = now

    def add(self, done: int, stage: int, now: float) -> None:
        """Note that an amount of a stage has been done since the last call."""
        s = self._stages[stage]
        if s.reported:
            s.measured += done
            s.seconds += now - self._last
        s.done, s.reported = s.done + done, True
        self._last = now

    @property
    def share(self) -> float:
        """How much of all work is done, 0 to 1."""
        total = sum(s.total for s in self._stages)
        return min(1.0, sum(s.done for s in self._stages) / total) if total else 1.0

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take; None: that cannot be said yet."""
        unfinished = [s for s in self._stages if s.done < s.total]
        if any(not s.measured for s in unfinished):
            return None
        return sum((s.total - s.done) * s.seconds / s.measured for s in unfinished)
