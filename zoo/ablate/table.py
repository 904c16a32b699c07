"""A table of raw values and how they are formatted, in the terminal and in reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from zoo.utils.fitting import FittingTable

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
    format: Callable[[Any], str] = str  # Any: each column has values of one type
    align_right: bool = True
    parts: tuple[str, ...] = ()

    def text(self, value: object) -> str:
        """A value as it is shown."""
        missing = value is None or (isinstance(value, float) and isnan(value))
        return MISSING if missing else self.format(value)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        key: its name in HTML and CSV files: letters and hyphens.
        title: the heading.
        columns: in order.
        rows: raw values, one per column.
        note: explains the columns.
        drop: headings of the columns that a narrow terminal does without, in this order.
        of_variants: whether the first column names variants.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # Any: as above
    note: str = ""
    drop: Sequence[str] = ()
    of_variants: bool = True

    @property
    def texts(self) -> list[list[str]]:
        """All values as they are shown, row by row."""
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    @property
    def sort_keys(self) -> list[list[str]]:
        """What the rows are sorted by where a reader asks for it, column by column.

        The first number of a value, in full; a text where there is none, empty for what is missing.
        """
        return [
            [_sort_key(value, text) for value, text in zip(row, texts, strict=True)]
            for row, texts in zip(self.rows, self.texts, strict=True)
        ]

    def rich(self) -> FittingTable:
        """The table for a terminal."""
        right = [column.title for column in self.columns if column.align_right]
        titles = [column.title for column in self.columns]
        return FittingTable(self.title, titles, self.texts, self.drop, right, lines=False)


def _sort_key(value: object, text: str) -> str:
    first = value[0] if isinstance(value, tuple) and value else value
    if text == MISSING or first is None:
        return ""
    return repr(float(first)) if isinstance(first, int | float) else text


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
    if isnan(low):
        return f"{difference:+.4f}"
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
