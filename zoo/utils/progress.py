"""The progress of long tasks: a bar on a terminal, and elsewhere a line every few seconds.

Long functions report their progress to `progress`, which shows nothing unless the program has set a console
(`Progress.console`). The command line sets it to standard error, so that the output of a command can be
piped; other Python programs can do the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Protocol

from zoo.utils.pace import Pace

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_PER_LINE = 10.0
"""Seconds between two lines where no bar can be drawn."""

Advance = Callable[[int], object]
"""A function that is called with the amount of work done since the last call."""


class AdvanceStage(Protocol):
    """A function that is called with the amount of work done since the last call, and its stage."""

    def __call__(self, done: int, stage: int = 0, /) -> object:
        """Record an amount of work."""


class Progress:
    """The settings of the progress bars of this process.

    Attributes:
        console: the console; None: progress is not shown.
        quiet: whether the user wants no progress at all, including that of training.
        clock: a function that returns the time in seconds.
    """

    console: ClassVar[Console | None] = None
    quiet: ClassVar[bool] = False
    clock: ClassVar[Callable[[], float]] = time.monotonic


@contextmanager
def progress(what: str, total: int | Sequence[int] | None = None) -> Iterator[AdvanceStage]:
    """Show the progress of a task while the body of the `with` statement runs.

    If tasks are nested, only the outermost one is shown.

    Args:
        what: the name of the task for the user.
        total: the amount of all work, in any unit, or the amounts of its stages, whose units may take
            different times; None: it is unknown, and no remaining time is shown.

    Yields:
        A function to call with the amount of work done since its last call, and its stage.
    """
    console = Progress.console
    if console is None:
        yield ignore
        return
    Progress.console = None
    totals = [total] if isinstance(total, int) else total
    pace = None if totals is None else Pace(totals, Progress.clock())
    try:
        if console.is_interactive:
            with _bar(console, what, pace) as advance:
                yield advance
        else:
            yield _Lines(console, what, pace)
    finally:
        Progress.console = console


def format_duration(seconds: float) -> str:
    """A number of seconds as text: 12 s, 3 min, 1.5 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def ignore(done: int, stage: int = 0, /) -> None:
    """Do nothing; the function for progress that is not shown."""


@contextmanager
def _bar(console: Console, what: str, pace: Pace | None) -> Iterator[AdvanceStage]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bars(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None if pace is None else 1.0, left="")

        def advance(done: int, stage: int = 0, /) -> None:
            if pace is not None:
                pace.add(done, stage, Progress.clock())
                bar.update(task, completed=pace.share, left=_left(pace))

        yield advance


class _Lines:
    """Prints a line when enough time has passed since the last one; a short task prints none."""

    def __init__(self, console: Console, what: str, pace: Pace | None) -> None:
        self._console, self._what, self._pace = console, what, pace
        self._begin = self._last = Progress.clock()

    def __call__(self, done: int, stage: int = 0, /) -> None:
        now = Progress.clock()
        if self._pace is not None:
            self._pace.add(done, stage, now)
        if now - self._last < SECONDS_PER_LINE:
            return
        self._last = now
        text = f"{format_duration(now - self._begin)} so far"
        if self._pace is not None:
            text = ", ".join(part for part in (f"{self._pace.share:.0%}", _left(self._pace)) if part)
        self._console.print(f"{self._what}: {text}", soft_wrap=True, highlight=False, markup=False)


def _left(pace: Pace) -> str:
    """The remaining time in words; "" while it is unknown."""
    return "" if pace.left is None else f"{format_duration(pace.left)} left"
