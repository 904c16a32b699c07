"""A table of raw values and how they are formatted, in the terminal and in reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import rich.table

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: the heading, with the unit.
        format: turns a value into text; None and NaN are always shown as a dash.
        align_right: whether the column is aligned to the right, as numbers are.
        parts: of a column of tuples, the names of their elements in CSV files.
    """

    title: str
    format: Callable[[Any], str] = str
    align_right: bool = True
    parts: tuple[str, ...] = ()

    def text(self, value: Any) -> str:
        """A value as it is shown."""
        missing = value is None or (isinstance(value, float) and isnan(value))
        return MISSING if missing else self.format(value)


@dataclass(frozen=True)
class Table:
    """A table whose first column names a variant.

    Attributes:
        key: its name in HTML and CSV files: letters and hyphens.
        title: the heading.
        columns: in order.
        rows: raw values, one per column.
        note: explains the columns.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    @property
    def texts(self) -> list[list[str]]:
        """All values as they are shown, row by row."""
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    def rich(self) -> rich.table.Table:
        """The table for a terminal."""
        table = rich.table.Table(title=self.title, title_justify="left", box=None, pad_edge=False)
        for column in self.columns:
            table.add_column(column.title, justify="right" if column.align_right else "left", overflow="fold")
        for row in self.texts:
            table.add_row(*row)
        return table


def format_loss(value: float) -> str:
    """A loss in nats."""
    return f"{value:.4f}"


def format_mean(value: tuple[float, float | None]) -> str:
    """A mean loss and its standard deviation, which a single seed does not have."""
    mean, sd = value
    return format_loss(mean) if sd is None else f"{format_loss(mean)} ± {format_loss(sd)}"


def format_interval(value: tuple[float, float, float]) -> str:
    """A difference of losses and the ends of its confidence interval, with their signs."""
    difference, low, high = value
    return f"{difference:+.4f} ({low:+.4f} to {high:+.4f})"


def format_p(value: float) -> str:
    """A p value."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def format_factor(value: tuple[float | None, float, float]) -> str:
    """A mean ratio with the lowest and the highest one; only these if there is no mean."""
    mean, low, high = ("∞" if ratio == inf else ratio and f"{ratio:.2f}" for ratio in value)
    ends = f"{low}" if value[1] == value[2] else f"{low}–{high}"
    if mean is None:
        return f"({ends})"
    return ends if value[1] == value[2] else f"{mean} ({ends})"


def format_spikes(value: tuple[int, float | None]) -> str:
    """The number of spikes and how far the loss rose in the worst one."""
    count, rise = value
    return f"{count}" if rise is None else f"{count} (∞)" if rise == inf else f"{count} ({rise:.2f})"


def format_count(value: float) -> str:
    """A count with separated thousands."""
    return f"{value:,.0f}"


def format_flops(value: float) -> str:
    """A very large count."""
    return f"{value:.3g}" if value < 1000 else f"{value:.2e}"


def format_seconds(value: float) -> str:
    """A time as ms, s or min."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:,.1f} s" if value < 600 else f"{value / 60:,.1f} min"


def format_bytes(value: int) -> str:
    """A size as KiB, MiB or GiB."""
    if value < 2**20:
        return f"{value / 2**10:,.1f} KiB"
    return f"{value / 2**20:,.1f} MiB" if value < 2**30 else f"{value / 2**30:,.2f} GiB"
