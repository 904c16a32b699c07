"""Ctrl-C and SIGTERM: finish the step, save, say how to go on."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While active, the first signal only asks to stop; a second Ctrl-C aborts at once.

    Attributes:
        asked: whether to stop after this step.
    """

    def __init__(self, launched: bool = False) -> None:
        """Prepare.

        Args:
            launched: whether torchrun started this process. It passes on a Ctrl-C that the terminal
                has sent to all already, so a second one means nothing; its own deadline aborts.
        """
        self.asked = False
        self._launched = launched
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT and not self._launched:
            raise KeyboardInterrupt
        self.asked = True
