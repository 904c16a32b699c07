"""Plots as PNG files, for paper and for browsers without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from zoo.report.plot import Plot, Series, View
from zoo.report.style import LineStyle
from zoo.utils.plotting import INK, SOFT, dress, literal, new_figure, to_png

PANELS_PER_ROW = 3
SHORT_RANGE = 10
"""A logarithmic axis whose ends have a smaller ratio gets the ticks of a linear one."""
FEW_DECADES = 1000
"""A logarithmic axis whose ends have a smaller ratio has ticks at 1, 2 and 5, as plain numbers."""
LEGEND_WIDTH = 110
"""Number of characters in a line of the legend."""


def draw_png(plot: Plot, styles: Mapping[str, LineStyle]) -> bytes:
    """Draw the first view of a plot, or all of them; the same plot gives the same bytes.

    Args:
        plot: the plot.
        styles: colours and dashes by variant.
    """
    views = plot.views if plot.panels else plot.views[:1]
    named = [s.variant for view in views for s in view.series if s.in_legend]
    legend = [] if plot.variant_rows else list(dict.fromkeys(named))
    per_row = max(1, LEGEND_WIDTH // (6 + max(map(len, legend), default=0)))
    columns = min(PANELS_PER_ROW, len(views))
    rows = -(-len(views) // columns)
    names = list(dict.fromkeys(name for view in views for name in view.rows)) if plot.variant_rows else []
    height = (
        1.2 + 0.35 * len(names)
        if plot.variant_rows
        else 0.2 * (len(legend) / per_row) + (4.3 if rows == columns == 1 else 3.0 * rows + 0.4)
    )
    figure = new_figure(9, height)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=plot.variant_rows).flat)
    for unused in axes[len(views) :]:
        unused.remove()
    for panel, view in zip(axes, views, strict=False):
        dress(panel, view.name if len(views) > 1 else plot.title, view.x, view.y)
        for series in view.series:
            if plot.variant_rows:
                _draw_point(panel, series, styles[series.variant], names, view.limits)
            else:
                _draw_line(panel, series, styles[series.variant], view.limits)
        _finish(panel, plot, view, styles)
    if names:
        axes[0].set_yticks(range(len(names)), map(literal, names))
        axes[0].set_ylim(len(names) - 0.4, -0.6)
    if legend:
        lines = [Line2D([], [], label=literal(name), **styles[name].matplotlib) for name in legend]
        figure.legend(
            handles=lines, loc="outside lower left", ncols=per_row, frameon=False, labelcolor=INK, fontsize=9
        )
    return to_png(figure)


def _draw_line(axes: Axes, series: Series, style: LineStyle, limits: tuple[float, float] | None) -> None:
    if series.points:
        errors = None
        if series.low:
            ends = zip(np.array(series.y, dtype=float), series.low, series.high, strict=True)
            errors = np.array([[y - low, high - y] for y, low, high in ends]).T
        axes.errorbar(series.drawn_x, series.y, errors, color=style.colour, fmt="o", ms=4, lw=1.4, capsize=3)
        least, most = limits or (-inf, inf)
        for x, low, high in zip(series.drawn_x, series.low, series.high, strict=False):
            for end, arrow, beyond in ((least, CARETDOWN, low < least), (most, CARETUP, high > most)):
                if beyond:
                    axes.plot(x, end, marker=arrow, color=style.colour, ms=8, mew=1.4, clip_on=False)
        return
    if series.low:
        fill, edge = ("none", style.colour) if series.beyond else (style.colour, "none")
        hatch = "///" if series.beyond else None
        axes.fill_between(
            series.x, series.low, series.high, alpha=0.18, lw=0, facecolor=fill, edgecolor=edge, hatch=hatch
        )
    width, marker = 0.8 if series.single_run else 1.8, "o" if series.has_markers else ""
    drawn = style.matplotlib | ({"ls": ":"} if series.beyond else {})
    axes.plot(series.x, series.y, lw=width, marker=marker, ms=3.5, **drawn)


def _draw_point(
    axes: Axes, series: Series, style: LineStyle, names: Sequence[str], limits: tuple[float, float] | None
) -> None:
    """Draw points with error bars; of what lies beyond the limits, an arrow at the border."""
    low, high = limits or (-inf, inf)
    ends = series.low or series.x, series.high or series.x
    for x, left, right, name in zip(series.x, *ends, series.y, strict=True):
        y = names.index(str(name))
        axes.plot(x, y, "o", color=style.colour, ms=7)
        axes.hlines(y, max(left, low), min(right, high), color=style.colour, lw=2)
        marks = (max(left, low), CARETLEFT, left < low), (min(right, high), CARETRIGHT, right > high)
        for end, arrow, beyond in marks:
            if series.low or beyond:
                mark = arrow if beyond else "|"
                axes.plot(end, y, marker=mark, color=style.colour, ms=8, mew=1.4, clip_on=False)


def _finish(axes: Axes, plot: Plot, view: View, styles: Mapping[str, LineStyle]) -> None:
    """Set scales and ticks, draw arrows, and mark where there is no difference."""
    if plot.marked is not None:
        mark = axes.axvline if plot.variant_rows else axes.axhline
        mark(plot.marked, color=SOFT, lw=1, ls=":")
    for arrow in view.arrows:
        arrow_style = {"arrowstyle": "-|>", "color": styles[arrow.variant].colour, "lw": 1.8}
        axes.annotate("", (arrow.end, arrow.y), (arrow.start, arrow.y), arrowprops=arrow_style)
    if view.log_x:
        axes.set_xscale("log")
    if view.log_y:
        axes.set_yscale("log")
    if view.limits:
        (axes.set_xlim if plot.variant_rows else axes.set_ylim)(*view.limits)
    if view.ticks:
        axes.set_xticks(view.ticks, view.tick_texts)
        axes.set_xticks([], minor=True)
    least, most = axes.get_ylim()
    if view.log_y and most < FEW_DECADES * least:
        short = most < SHORT_RANGE * least
        axes.yaxis.set_major_locator(MaxNLocator(5) if short else LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    if plot.from_zero:
        (axes.set_xlim if plot.variant_rows else axes.set_ylim)(0)
