"""The time that training steps take, with their waits for data, without evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Counts seconds and tokens of training steps.

    Attributes:
        seconds: total duration of the steps of this session.
    """

    def __init__(self, peak_share: float | None = None) -> None:
        """Start with 0 seconds.

        Args:
            peak_share: the MFU of one token per second, see `zoo.train.utilisation`; None: it is not known.
        """
        self._peak_share = peak_share
        self.seconds = 0.0
        self._lap_seconds = self._lap_tokens = 0.0

    @contextmanager
    def step(self, tokens: int) -> Iterator[None]:
        """Measure the step in the body of the `with` statement, over `tokens` tokens of all ranks."""
        begin = time.perf_counter()
        yield
        passed = time.perf_counter() - begin
        self.seconds += passed
        self._lap_seconds += passed
        self._lap_tokens += tokens

    @property
    def tokens_per_second(self) -> float:
        """Training tokens of all ranks per second since the last lap."""
        return self._lap_tokens / self._lap_seconds if self._lap_seconds else 0.0

    @property
    def mfu(self) -> float | None:
        """The model FLOPs utilisation since the last lap; None where the device's peak is not known."""
        return None if self._peak_share is None else self.tokens_per_second * self._peak_share

    def lap(self) -> dict[str, float]:
        """Total seconds and the speed since the last lap, for a log line; starts a new lap."""
        measured = {"seconds": self.seconds, "tokens_per_second": self.tokens_per_second}
        if (mfu := self.mfu) is not None:
            measured["mfu"] = mfu
        self._lap_seconds = self._lap_tokens = 0.0
        return measured
