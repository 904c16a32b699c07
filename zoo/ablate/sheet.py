"""A table of raw values that shows itself: in the terminal, as Markdown, in a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from rich.table import Table

NONE = "–"


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: what stands above it, with the unit.
        show: turns a value into text; None is always shown as a dash.
        right: whether it is aligned to the right, as numbers are.
        parts: names of the parts of a value that is a tuple, for files; all else is one value.
    """

    title: str
    show: Callable[[Any], str] = str
    right: bool = True
    parts: tuple[str, ...] = ()

    def text(self, value: Any) -> str:
        """A value as it is shown."""
        missing = value is None or (isinstance(value, float) and isnan(value))
        return NONE if missing else self.show(value)


@dataclass(frozen=True)
class Sheet:
    """A table; the first column names a variant.

    Attributes:
        key: its name in files: letters and hyphens.
        title: the heading.
        columns: in order.
        rows: raw values, one per column.
        note: what the reader must know to understand the columns.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    @property
    def texts(self) -> list[list[str]]:
        """All values as they are shown."""
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left", box=None, pad_edge=False)
        for column in self.columns:
            table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
        for row in self.texts:
            table.add_row(*row)
        return table


def loss(value: float) -> str:
    """A loss in nats."""
    return f"{value:.4f}"


def deviation(value: tuple[float, float | None]) -> str:
    """A mean loss and its standard deviation; of one seed there is none."""
    centre, sd = value
    return loss(centre) if sd is None else f"{loss(centre)} ± {loss(sd)}"


def interval(value: tuple[float, float, float]) -> str:
    """A difference of losses and its confidence interval, with their signs."""
    centre, low, high = value
    return f"{centre:+.4f} ({low:+.4f} to {high:+.4f})"


def probability(value: float) -> str:
    """A p value."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def factors(value: tuple[float | None, float, float]) -> str:
    """A mean ratio, and the lowest and highest; these alone where there is no mean."""
    centre, low, high = value
    ends = _times(low) if low == high else f"{_times(low)}–{_times(high)}"
    if centre is None:
        return f"({ends})"
    return ends if low == high else f"{_times(centre)} ({ends})"


def _times(value: float) -> str:
    return "∞" if value == inf else f"{value:.2f}"


def spikes(value: tuple[int, float | None]) -> str:
    """How many, and how far the loss rose in the highest."""
    count, rise = value
    return f"{count}" if rise is None else f"{count} (∞)" if rise == inf else f"{count} ({rise:.2f})"


def large(value: float) -> str:
    """A count, with its thousands."""
    return f"{value:,.0f}"


def scientific(value: float) -> str:
    """A very large count."""
    return f"{value:.3g}" if value < 1000 else f"{value:.2e}"


def seconds(value: float) -> str:
    """A time."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:,.1f} s" if value < 600 else f"{value / 60:,.1f} min"


def size(value: int) -> str:
    """Bytes."""
    if value < 2**20:
        return f"{value / 2**10:,.1f} KiB"
    return f"{value / 2**20:,.1f} MiB" if value < 2**30 else f"{value / 2**30:,.2f} GiB"
