"""Ctrl-C, SIGTERM and another signal: training ends after the current step, saved."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """A context in which the first signal only requests a stop; a second Ctrl-C aborts at once.

    Attributes:
        requested: whether training is to stop after the current step.
        by_hand: whether Ctrl-C has requested it, and no scheduler.
    """

    def __init__(self, launched: bool = False, also: str | None = None) -> None:
        """Create the context; the handlers are installed when it is entered.

        Args:
            launched: whether torchrun started this process. It forwards a Ctrl-C that the terminal has sent
                to all processes already, so a second one means nothing; torchrun has its own timeout.
            also: the name of one more signal.
        """
        self.requested = self.by_hand = False
        self._signals = [signal.SIGINT, signal.SIGTERM, *([signal.Signals[also]] if also else [])]
        self._launched = launched
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT and not self._launched:
            raise KeyboardInterrupt
        self.requested = True
        self.by_hand = self.by_hand or number == signal.SIGINT
