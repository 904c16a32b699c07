"""A plot as data, drawn twice: interactive in the page (`interactive`), on paper as a PNG (`static`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """A line or a row of points.

    Attributes:
        name: in the legend, and when the pointer is on it.
        variant: whose look it has; hidden together with it.
        x: numbers, or in a plot of rows the values.
        y: numbers, or in a plot of rows the names of the rows.
        low: lower end of the spread, of y, in a plot of rows of x; empty: none is shown.
        high: its upper end.
        listed: whether it is in the legend.
        own: whether it is hidden by itself rather than with its variant.
        thin: whether it is one of many.
    """

    name: str
    variant: str
    x: Sequence[float]
    y: Sequence[float] | Sequence[str]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    listed: bool = True
    own: bool = False
    thin: bool = False


@dataclass(frozen=True)
class View:
    """One of the ways to look at a plot.

    Attributes:
        name: on the button that chooses it.
        x: title of the axis, with its unit.
        y: the same; empty in a plot of rows.
        series: what is drawn, the first below.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical one is.
        ticks: where the horizontal axis has its marks; empty: anywhere.
    """

    name: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = ()


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        key: its name in files: letters and hyphens.
        title: the heading.
        views: one or more; on paper there is the first.
        note: what the reader must know.
        rows: whether it has a row per variant instead of lines.
        zero: whether zero is marked: where there is no difference.
    """

    key: str
    title: str
    views: Sequence[View]
    note: str = ""
    rows: bool = False
    zero: bool = False
