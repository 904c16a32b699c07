"""What the user sees meanwhile: a bar with the loss, the speed and the time left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingBar:
    """A progress bar on the main rank, nothing on the others."""

    def __init__(self, console: Console | None, name: str, start: int, steps: int, unit: str) -> None:
        """Prepare.

        Args:
            console: where to draw, or None to stay silent.
            name: of the run.
            start: steps done before.
            steps: steps in all.
            unit: what the speed counts.
        """
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]}  valid {task.fields[valid]}  {task.fields[speed]} " + f"{unit}/s"
            ),
            TimeRemainingColumn(),
            console=console,
            disable=console is None,
        )
        fields = {"loss": "-", "valid": "-", "speed": "-"}
        self._task = self._progress.add_task(name, total=steps, completed=start, **fields)  # type: ignore[arg-type]

    def step(self, done: int, loss: float, tokens_per_second: float) -> None:
        """Show a finished step."""
        self._progress.update(
            self._task, completed=done, loss=f"{loss:.4f}", speed=f"{tokens_per_second:,.0f}"
        )

    def validation(self, cross_entropy: float) -> None:
        """Show a validation loss."""
        self._progress.update(self._task, valid=f"{cross_entropy:.4f}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
