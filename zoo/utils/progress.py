"""How far a long task is: a bar on a terminal, and elsewhere a line every few seconds.

Functions that take long report what they have done to `progress`, which shows nothing unless the program has
named a console (`Progress.console`). The command line names standard error, so that what a command prints can
be piped; a Python program that wants to see the same does so as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_PER_LINE = 10.0
"""The time between two lines where no bar can be drawn."""

Advance = Callable[[int], object]
"""Called with the amount of work that was done since the last call."""


class Progress:
    """Where progress is shown.

    Attributes:
        console: the console; None: nowhere.
        quiet: whether the user asked for no progress at all, also in training.
    """

    console: ClassVar[Console | None] = None
    quiet: ClassVar[bool] = False


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advance]:
    """Show the progress of a task while the body of the `with` statement runs.

    Of tasks within tasks only the outermost is shown.

    Args:
        what: the task, as the user would call it.
        total: the amount of all work, in any unit; None: unknown, so that no remaining time is shown.

    Yields:
        A function that is called with the amount that was done since its last call.
    """
    console = Progress.console
    if console is None:
        yield ignore
        return
    Progress.console = None
    try:
        if console.is_interactive:
            with _bar(console, what, total) as advance:
                yield advance
        else:
            yield _Lines(console, what, total)
    finally:
        Progress.console = console


def format_duration(seconds: float) -> str:
    """Seconds as 12 s, 3 min, 1.5 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def ignore(done: int) -> None:
    """Show nothing."""


@contextmanager
def _bar(console: Console, what: str, total: int | None) -> Iterator[Advance]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


class _Lines:
    """Prints a line when enough time has passed since the last one; a short task prints none."""

    def __init__(self, console: Console, what: str, total: int | None) -> None:
        self._console, self._what, self._total = console, what, total
        self._begin = self._last = time.monotonic()
        self._done = 0

    def __call__(self, done: int) -> None:
        self._done += done
        now = time.monotonic()
        if now - self._last < SECONDS_PER_LINE:
            return
        self._last = now
        passed = now - self._begin
        if self._total is None:
            text = f"{format_duration(passed)} so far"
        else:
            share = min(1.0, self._done / self._total) if self._total else 1.0
            left = f", {format_duration(passed * (1 / share - 1))} left" if share else ""
            text = f"{share:.0%}{left}"
        self._console.print(f"{self._what}: {text}", soft_wrap=True, highlight=False, markup=False)
