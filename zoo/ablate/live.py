"""The progress of a sweep: on a terminal a table of all runs, elsewhere a line for each run that ends.

The lines begin with one for all runs that an earlier session finished.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from zoo.ablate.manifest import Run
from zoo.ablate.run_metrics import measures_of
from zoo.ablate.scale.runs import format_count
from zoo.utils.measures import CROSS_ENTROPY, Measure
from zoo.utils.progress import format_duration
from zoo.utils.run_folder import RunFolder

ORDER = ("running", "failed", "interrupted", "waiting", "finished", "stopped")
FROM_BEFORE = ("finished", "stopped")
"""The states of runs that, if they had ended before, are counted in one line."""
DRAWING = 0.03
"""The share of a core that drawing the table may take from the workers."""
AROUND = 4
"""Lines of the terminal for the title, the columns' names, what is left out, and the cursor."""
STYLES = {"running": "bold", "failed": "red", "finished": "green", "stopped": "dim", "waiting": "dim"}


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run of a sweep, for the display in the terminal.

    Attributes:
        run: the run.
        steps: the number of steps of the whole run.
        step: the number of steps done.
        loss: the last loss; None if there is none yet.
        value: the last value of the measure of the comparison, if that is not the loss; None if there is none
            yet.
    """

    run: Run
    steps: int
    step: int
    loss: float | None
    value: float | None = None


class Display:
    """Shows the progress of a sweep; a context manager."""

    def __init__(self, console: Console | None, name: str, measure: Measure = CROSS_ENTROPY) -> None:
        """Prepare the display.

        Args:
            console: where to show the progress; None: it is not shown.
            name: the name of the sweep.
            measure: the measure by which the runs are compared.
        """
        self._console, self._name, self._measure = console, name, measure
        # Without auto-refresh, rich starts no thread.
        self._live = Live(console=console, auto_refresh=False) if console and console.is_terminal else None
        self._latest: Sequence[RunProgress] = ()
        self._due = 0.0  # when the table may be drawn again
        self._shown: dict[str, str] | None = None  # status by run; None: nothing was shown yet
        self._started: dict[str, tuple[float, int]] = {}  # time and step by run

    def show(self, progress: Sequence[RunProgress]) -> None:
        """Show the progress of all runs, on a terminal with a delay of up to some seconds."""
        self._latest = progress
        for p in progress:
            if p.run.status == "running":
                self._started.setdefault(p.run.id, (time.monotonic(), p.step))
            else:
                self._started.pop(p.run.id, None)
        if self._live is not None:
            begin = time.monotonic()
            if begin >= self._due:
                self._live.update(self._table(progress, self._live.console.height), refresh=True)
                end = time.monotonic()
                self._due = end + (end - begin) / DRAWING
        elif self._console is not None:
            if self._shown is None:
                self._shown = {p.run.id: p.run.status for p in progress if p.run.status in FROM_BEFORE}
                if self._shown:
                    before = self._counts([p for p in progress if p.run.id in self._shown])
                    self._print(f"{len(self._shown)}/{len(progress)} had ended before: {before}")
            for p in progress:
                if p.run.status not in ("running", self._shown.get(p.run.id, "waiting")):
                    self._print(self._line(p, progress))
                self._shown[p.run.id] = p.run.status

    def _print(self, line: str) -> None:
        if self._console is not None:
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    @staticmethod
    def _counts(progress: Sequence[RunProgress]) -> str:
        """How many runs have which status, such as ``2 running, 1 waiting``."""
        return ", ".join(f"{n} {s}" for s in ORDER if (n := sum(p.run.status == s for p in progress)))

    def _table(self, progress: Sequence[RunProgress], height: int) -> Table:
        """The runs for which a terminal of so many lines has room."""
        table = Table(title=f"{self._name}: {self._counts(progress)}", title_justify="left", box=None)
        for column in ("variant", "tuned", "for", "status"):
            table.add_column(column, no_wrap=True)
        judged = [] if self._measure.is_loss else [self._measure.title]
        rung = ["size", "tokens"] if any(p.run.params for p in progress) else []
        for column in (*rung, "seed", "step", *judged, "loss", "left"):
            table.add_column(column, justify="right", no_wrap=True)
        rows = sorted(progress, key=lambda p: ORDER.index(p.run.status))
        room = max(1, height - AROUND)
        if len(rows) > room:
            table.caption, table.caption_justify = f"and {len(rows) - room} more", "left"
        for p in rows[:room]:
            tuned = p.run.tuned.values()
            table.add_row(
                p.run.variant,
                " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in tuned),
                "+".join(p.run.phases),
                p.run.status,
                *[format_count(amount or 0) for amount in (p.run.params, p.run.tokens) if rung],
                str(p.run.seed),
                f"{p.step}/{p.steps}",
                *[_number(p.value) for _ in judged],
                _number(p.loss),
                self._time_left(p),
                style=STYLES.get(p.run.status),
            )
        return table

    def _time_left(self, progress: RunProgress) -> str:
        """The remaining time of a run at its speed so far."""
        start, first = self._started.get(progress.run.id, (0.0, progress.step))
        if progress.step <= first:
            return ""
        seconds_per_step = (time.monotonic() - start) / (progress.step - first)
        return format_duration(seconds_per_step * (progress.steps - progress.step))

    def _line(self, progress: RunProgress, all_runs: Sequence[RunProgress]) -> str:
        run = progress.run
        ended = sum(p.run.status in ("finished", "failed", "stopped") for p in all_runs)
        rung = ""
        if run.params is not None and run.tokens is not None:
            rung = f" {format_count(run.params)}, {format_count(run.tokens)} tokens,"
        parts = [
            f"{run.variant}{rung} seed {run.seed}",
            *(f"{key} {value}" for key, value in run.tuned.items()),
        ]
        parts += [] if run.status == "finished" else [f"step {progress.step} of {progress.steps}"]
        numbers = {self._measure.title: progress.value, CROSS_ENTROPY.title: progress.loss}
        parts += [f"{title} {value:.4f}" for title, value in numbers.items() if value is not None]
        parts += [run.error] if run.error else []
        return f"{ended}/{len(all_runs)} {run.status}: {', '.join(parts)}"

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            if self._latest:
                self._live.update(self._table(self._latest, self._live.console.height))
            self._live.stop()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def read_progress(folder: Path, measure: Measure = CROSS_ENTROPY) -> tuple[int, float | None, float | None]:
    """Read the progress of a run that is being trained from the end of metrics.jsonl.

    Args:
        folder: the run folder.
        measure: the measure by which the run is compared.

    Returns:
        The step, the last loss, and the last value of the measure if that is not the loss.
    """
    records = RunFolder(folder).read_last_metrics()
    losses = [record["cross_entropy"] for record in records if record["kind"] in ("train", "validation")]
    validations = [measures_of(record) for record in records if record["kind"] == "validation"]
    values = [] if measure.is_loss else [v[measure.name] for v in validations if measure.name in v]
    step = max((r["step"] for r in records), default=0)
    return step, losses[-1] if losses else None, values[-1] if values else None
