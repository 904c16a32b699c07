"""The progress bar of a run: losses, speed and remaining time."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.utils.progress import Advance, ignore
from zoo.utils.untyped import Kwargs


class TrainingBar:
    """A progress bar on the main rank; other ranks draw nothing."""

    def __init__(
        self,
        console: Console | None,
        name: str,
        start: int,
        steps: int,
        unit: str,
        advance: Advance = ignore,
    ) -> None:
        """Create the bar; it is shown when the context is entered.

        Args:
            console: where to draw; None: nothing is drawn.
            name: name of the run.
            start: number of steps done before.
            steps: total number of steps.
            unit: unit of the speed, in the plural.
            advance: a function to call with the number of steps that were done since its last call.
        """
        self._done, self._advance = start, advance
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]}  valid {task.fields[valid]}  {task.fields[speed]} "
                + f"{unit}/s"
                + "{task.fields[mfu]}"
            ),
            TimeRemainingColumn(),
            console=console,
            disable=console is None,
        )
        fields: Kwargs = {"loss": "-", "valid": "-", "speed": "-", "mfu": ""}
        self._task = self._progress.add_task(name, total=steps, completed=start, **fields)

    def step(self, done: int, loss: float, tokens_per_second: float, mfu: float | None = None) -> None:
        """Show a finished step, with the MFU where it is known."""
        self._advance(done - self._done)
        self._done = done
        used = "" if mfu is None else f", MFU {mfu:.0%}"
        self._progress.update(
            self._task, completed=done, loss=f"{loss:.4f}", speed=f"{tokens_per_second:,.0f}", mfu=used
        )

    def validation(self, words: str) -> None:
        """Show the last validation loss."""
        self._progress.update(self._task, valid=words)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
