"""Tables of raw values with their formats, for the terminal and for reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from zoo.utils.fitting import FittingTable

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column of a `Table`.

    Attributes:
        title: the heading, with the unit.
        format: a function that turns a value into text; None and NaN are always shown as a dash.
        align_right: whether the column is right-aligned, as for numbers.
        parts: names of the elements in CSV files, for a column of tuples.
    """

    title: str
    format: Callable[[Any], str] = str  # Any: each column has values of one type
    align_right: bool = True
    parts: tuple[str, ...] = ()

    def text(self, value: object) -> str:
        """The text of a value."""
        missing = value is None or (isinstance(value, float) and isnan(value))
        return MISSING if missing else self.format(value)


@dataclass(frozen=True)
class Table:
    """A table of raw values, which is shown in a terminal or written as Markdown, HTML, LaTeX or CSV.

    Attributes:
        key: name of the table in HTML and CSV files: letters and hyphens.
        title: the heading.
        columns: the columns in order.
        rows: raw values, one per column.
        note: an explanation of the columns.
        drop: headings of the columns that a narrow terminal leaves out, in this order.
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
        """The texts of all values, row by row."""
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    @property
    def sort_keys(self) -> list[list[str]]:
        """The keys by which rows can be sorted, column by column.

        A key is the first number of a value in full precision; a text if there is no number, empty for
        missing values.
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
    """A mean loss and its standard deviation, if there are several seeds."""
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
    """A mean ratio with the lowest and the highest one, or only these if there is no mean."""
    mean, low, high = ("∞" if ratio == inf else ratio and f"{ratio:.2f}" for ratio in value)
    ends = f"{low}" if value[1] == value[2] else f"{low}–{high}"
    if mean is None:
        return f"({ends})"
    return ends if value[1] == value[2] else f"{mean} ({ends})"


def format_spikes(value: tuple[int, float | None]) -> str:
    """The number of spikes, and the rise of the loss in the worst one."""
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
