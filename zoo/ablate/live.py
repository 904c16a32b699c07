"""What the user sees meanwhile: a table of all runs; without a terminal, a line per run that ends."""

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
from zoo.utils.run_folder import RunFolder

ORDER = ("running", "failed", "interrupted", "waiting", "finished", "stopped")
STYLES = {"running": "bold", "failed": "red", "finished": "green", "stopped": "dim", "waiting": "dim"}


@dataclass(frozen=True)
class Row:
    """A run as it is shown: of all its `steps`, the `step` it is at, and its last validation loss."""

    run: Run
    steps: int
    step: int
    loss: float | None


class Display:
    """The table of a sweep."""

    def __init__(self, console: Console | None, name: str) -> None:
        """Prepare.

        Args:
            console: where to show it, or None to stay silent.
            name: of the sweep.
        """
        self._console, self._name = console, name
        # Drawn when asked to, not by a thread.
        self._live = Live(console=console, auto_refresh=False) if console and console.is_terminal else None
        self._before: dict[str, str] = {}
        self._since: dict[str, tuple[float, int]] = {}

    def show(self, rows: Sequence[Row]) -> None:
        """Show how things are now."""
        for row in rows:
            if row.run.status == "running":
                self._since.setdefault(row.run.id, (time.monotonic(), row.step))
            else:
                self._since.pop(row.run.id, None)
        if self._live is not None:
            self._live.update(self._table(rows), refresh=True)
        elif self._console is not None:
            self._lines(rows)

    def _table(self, rows: Sequence[Row]) -> Table:
        counts = [f"{n} {s}" for s in ORDER if (n := sum(row.run.status == s for row in rows))]
        table = Table(title=f"{self._name}: {', '.join(counts)}", title_justify="left", box=None)
        for column in ("variant", "tuned", "for", "status"):
            table.add_column(column, no_wrap=True)
        for column in ("seed", "step", "loss", "left"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in sorted(rows, key=lambda row: ORDER.index(row.run.status)):
            run = row.run
            table.add_row(
                run.variant,
                " ".join(
                    f"{value:g}" if isinstance(value, float) else str(value) for value in run.tuned.values()
                ),
                "+".join(run.phases),
                run.status,
                str(run.seed),
                f"{row.step}/{row.steps}",
                "" if row.loss is None else f"{row.loss:.4f}",
                self._left(row),
                style=STYLES.get(run.status),
            )
        return table

    def _left(self, row: Row) -> str:
        """The time that a run still takes, from its own speed."""
        begin, first = self._since.get(row.run.id, (0.0, row.step))
        if row.step <= first:
            return ""
        seconds = (time.monotonic() - begin) / (row.step - first) * (row.steps - row.step)
        return duration(seconds)

    def _lines(self, rows: Sequence[Row]) -> None:
        assert self._console is not None
        for row in rows:
            run = row.run
            if run.status != "running" and self._before.get(run.id, "waiting") != run.status:
                self._console.print(self._line(row, rows), soft_wrap=True, highlight=False, markup=False)
            self._before[run.id] = run.status

    def _line(self, row: Row, rows: Sequence[Row]) -> str:
        run = row.run
        done = sum(r.run.status in ("finished", "failed", "stopped") for r in rows)
        parts = [f"{done}/{len(rows)} {run.status}", f"{run.variant} seed {run.seed}"]
        parts += [f"{key} {value}" for key, value in run.tuned.items()]
        parts += [] if run.status == "finished" else [f"step {row.step} of {row.steps}"]
        parts += [f"loss {row.loss:.4f}"] if row.loss is not None else []
        parts += [run.error] if run.error else []
        return ": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def sight(folder: Path) -> tuple[int, float | None]:
    """The step a run is at, and its last loss, from the end of what it has written so far."""
    records = RunFolder(folder).read_last_metrics()
    losses = [record["cross_entropy"] for record in records if record["kind"] in ("train", "validation")]
    return max((r["step"] for r in records), default=0), losses[-1] if losses else None


def duration(seconds: float) -> str:
    """Seconds as 12 s, 3 min, 1.5 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
