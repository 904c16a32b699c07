"""A plot as data; it is drawn interactively in the page (`interactive`) and as a PNG (`static`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """A line, or a point in a plot that has a row per variant.

    Attributes:
        name: shown in the legend and next to the pointer.
        variant: the variant whose style the line has; the line is hidden together with this variant.
        x: numbers.
        y: numbers; in a plot with a row per variant, the names of the rows.
        low: the lower end of a band or an error bar around y (around x in a plot with a row per variant);
            empty: none is drawn.
        high: its upper end.
        single_run: whether the line is that of a single run: it is thin, and hidden on its own.
    """

    name: str
    variant: str
    x: Sequence[float]
    y: Sequence[float] | Sequence[str]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    single_run: bool = False

    @property
    def has_markers(self) -> bool:
        """Whether there are so few points that each is marked."""
        return len(self.x) <= 30 and not self.single_run


@dataclass(frozen=True)
class View:
    """One of the ways to show a plot, for instance over tokens instead of steps.

    Attributes:
        name: shown on the button that chooses the view.
        x: the title of the horizontal axis, with its unit.
        y: the title of the vertical axis, with its unit; empty in a plot with a row per variant.
        series: what is drawn, from the back to the front.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is logarithmic.
        ticks: where the horizontal axis has its ticks; empty: the drawing library decides.
    """

    name: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = ()

    @property
    def row_count(self) -> int:
        """The number of rows in a plot with a row per variant."""
        return len({name for series in self.series for name in series.y})


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        key: its file name without ".png": letters and hyphens.
        title: the heading.
        views: one or more; on paper the first one is drawn.
        note: the caption.
        variant_rows: whether the vertical axis has a row per variant.
        zero_line: whether a line marks zero, where there is no difference.
    """

    key: str
    title: str
    views: Sequence[View]
    note: str = ""
    variant_rows: bool = False
    zero_line: bool = False
