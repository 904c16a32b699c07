"""Handling of Ctrl-C, SIGTERM and another signal: save and stop after the step; the second time at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

GRACE_SECONDS = 2.0
"""Time that Python has to handle a second signal before the process is ended."""


def _forget_pipe() -> None:
    """Keep a forked process from writing its signals into the pipe of its parent."""
    with suppress(ValueError):  # the fork was not made by the main thread
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_pipe)


class Interrupt:
    """A context manager in which a first signal requests a stop, and the same signal again aborts.

    The context can be entered again; a stop that was requested before stays requested.

    A thread waits for the second signal, which therefore ends the process even during something that Python
    cannot interrupt, such as an operation of torch that takes hours.

    Python lets only the main thread handle signals. In another thread the context handles none: Ctrl-C and
    SIGTERM do to the process what they did before, and only `request` stops the training.

    Attributes:
        requested: whether training is to stop after the current step.
        by_hand: whether the stop was requested by Ctrl-C or `request`, and not by a scheduler.
    """

    def __init__(self, launched: bool = False, also: str | None = None) -> None:
        """Create the context; the handlers are installed when it is entered.

        Args:
            launched: whether torchrun started this process. It forwards a Ctrl-C that the terminal has sent
                to all processes already, so a second one is ignored; torchrun has its own timeout.
            also: the name of one more signal.
        """
        self.requested = self.by_hand = False
        self._signals = [signal.SIGINT, signal.SIGTERM, *([signal.Signals[also]] if also else [])]
        self._launched = launched
        self._before: dict[signal.Signals, Any] = {}  # Any: `signal.signal` has no name for it
        self._received: set[int] = set()
        self._left = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._left.clear()
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)
        if not self._launched and os.name == "posix":
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._former = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._watcher = threading.Thread(target=self._watch, daemon=True, name="zoo-interrupt")
            self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._watcher is not None:
            signal.set_wakeup_fd(self._former)
            os.close(self._write)  # the watcher reads the end of the pipe
            self._watcher.join()
            os.close(self._read)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def request(self) -> None:
        """Request a stop as the first Ctrl-C does."""
        self.requested = self.by_hand = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number in self._received and not self._launched:
            raise KeyboardInterrupt
        self._received.add(number)
        self.requested = True
        self.by_hand = self.by_hand or number == signal.SIGINT

    def _watch(self) -> None:
        """End the process after a signal has come twice, if the context is not left within the grace time."""
        seen: set[int] = set()
        while numbers := os.read(self._read, 1):
            if numbers[0] in seen and numbers[0] in self._signals and not self._left.wait(GRACE_SECONDS):
                os._exit(128 + numbers[0])
            seen.add(numbers[0])
