"""Plots as data, which are drawn interactively in the page (`interactive`) and as PNG (`static`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zoo.ablate.scale.runs import format_count

MOST_TICKS = 7
"""Largest number of values with a tick each; with more, the drawing library chooses the ticks."""
APART = 1.4
"""Smallest factor between neighbours on a logarithmic axis whose ticks have room beside each other."""


def legible_ticks(values: Iterable[float]) -> Sequence[float]:
    """The values that were tried as ticks, each once and ascending; empty if their labels would overlap.

    Args:
        values: the values, in any order.
    """
    ticks = sorted(set(values))
    apart = not ticks or ticks[0] <= 0 or all(b / a >= APART for a, b in pairwise(ticks))
    return ticks if len(ticks) <= MOST_TICKS and apart else ()


@dataclass(frozen=True)
class Series:
    """A line, or a point in a plot that has a row per variant.

    Attributes:
        name: the name in the legend and next to the pointer.
        variant: the variant whose style the line has; the line is hidden together with this variant.
        x: the horizontal coordinates.
        y: the vertical coordinates; in a plot with a row per variant, the names of the rows.
        low: the lower end of a band or an error bar around y (around x in a plot with a row per variant);
            empty: none is drawn.
        high: the upper end of the band or error bar.
        single_run: whether the line is that of a single run: it is thin, and hidden on its own.
        points: whether to draw points, with error bars if there are `low` and `high`, instead of a line.
        beyond: whether the line is an extrapolation, which is dotted with a hatched band.
        in_legend: whether the legend names it.
        beside: the factor on x at which points are drawn, so that bars at the same x do not hide each other.
    """

    name: str
    variant: str
    x: Sequence[float]
    y: Sequence[float] | Sequence[str]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    single_run: bool = False
    points: bool = False
    beyond: bool = False
    in_legend: bool = True
    beside: float = 1.0

    @property
    def drawn_x(self) -> list[float]:
        """The horizontal coordinates at which points are drawn."""
        return [x * self.beside for x in self.x]

    @property
    def has_markers(self) -> bool:
        """Whether there are so few points that each is marked."""
        return len(self.x) <= 30 and not self.single_run and not self.beyond


@dataclass(frozen=True)
class Arrow:
    """A horizontal arrow in a plot.

    Attributes:
        variant: the variant whose colour the arrow has.
        start: the horizontal coordinate of the tail.
        end: the horizontal coordinate of the head.
        y: the vertical coordinate.
    """

    variant: str
    start: float
    end: float
    y: float


@dataclass(frozen=True)
class View:
    """One of the ways to show a plot, for instance over tokens instead of steps.

    Attributes:
        name: the name on the button that selects the view.
        x: the title of the horizontal axis, with its unit.
        y: the title of the vertical axis, with its unit; empty in a plot with a row per variant.
        series: the series, from the back to the front.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is logarithmic.
        ticks: ticks of the horizontal axis; empty: the drawing library chooses them.
        limits: the ends of the vertical axis, or of the horizontal one in a plot with a row per variant,
            where arrows stand for what lies beyond; None: everything is inside.
        arrows: arrows in front of the series.
    """

    name: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = ()
    limits: tuple[float, float] | None = None
    arrows: Sequence[Arrow] = ()

    @property
    def tick_texts(self) -> list[str]:
        """The ticks as texts, with a unit from a thousand on if one of them is large."""
        least = 1e3 if max(self.ticks, default=0.0) >= 1e4 else 1e4
        return [format_count(tick) if tick >= least else f"{tick:.4g}" for tick in self.ticks]

    @property
    def rows(self) -> list[str]:
        """The names of the rows in a plot with a row per variant, from the top."""
        return list(dict.fromkeys(str(name) for series in self.series for name in series.y))


@dataclass(frozen=True)
class Plot:
    """A plot of a report, which is drawn on paper and in the browser.

    Attributes:
        key: the file name without ".png": letters and hyphens.
        title: the heading.
        views: one or more; on paper the first one is drawn, or all of them as panels.
        note: the caption.
        variant_rows: whether the vertical axis has a row per variant.
        zero_line: whether a line marks zero, that is, no difference.
        one_line: whether a line marks a factor of one instead.
        from_zero: whether the values are amounts, whose axis starts at zero.
        panels: whether all views are drawn on paper, side by side; with a row per variant they share the
            rows.
    """

    key: str
    title: str
    views: Sequence[View]
    note: str = ""
    variant_rows: bool = False
    zero_line: bool = False
    one_line: bool = False
    from_zero: bool = False
    panels: bool = False

    @property
    def marked(self) -> float | None:
        """The value at which there is no difference; None if no line marks it."""
        return 0.0 if self.zero_line else 1.0 if self.one_line else None
