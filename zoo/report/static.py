"""Plots as PNG files, for paper and for browsers without scripts."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zoo.report.plot import Plot, Series, View
from zoo.report.style import LineStyle
from zoo.utils.plotting import INK, SOFT, dress, new_figure, to_png

LEGEND_WIDTH = 110
"""The number of characters that fit into a line of the legend."""


def draw_png(plot: Plot, styles: Mapping[str, LineStyle]) -> bytes:
    """Draw the first view of a plot; the same plot gives the same bytes.

    Args:
        plot: what to draw.
        styles: colours and dashes by variant.
    """
    view = plot.views[0]
    legend = [] if plot.variant_rows else list(dict.fromkeys(s.variant for s in view.series))
    columns = max(1, LEGEND_WIDTH // (6 + max(map(len, legend), default=0)))
    height = 1.2 + 0.35 * view.row_count if plot.variant_rows else 4.3 + 0.2 * (len(legend) / columns)
    figure = new_figure(9, height)
    axes = figure.subplots()
    dress(axes, plot.title, view.x, view.y)
    for series in view.series:
        draw = _draw_point if plot.variant_rows else _draw_line
        draw(axes, series, styles[series.variant])
    _finish(axes, plot, view)
    if legend:
        lines = [Line2D([], [], label=variant, **styles[variant].matplotlib) for variant in legend]
        figure.legend(
            handles=lines, loc="outside lower left", ncols=columns, frameon=False, labelcolor=INK, fontsize=9
        )
    return to_png(figure)


def _draw_line(axes: Axes, series: Series, style: LineStyle) -> None:
    if series.low:
        axes.fill_between(series.x, series.low, series.high, color=style.colour, alpha=0.18, lw=0)
    width, marker = 0.8 if series.single_run else 1.8, "o" if series.has_markers else ""
    axes.plot(series.x, series.y, lw=width, marker=marker, ms=3.5, **style.matplotlib)


def _draw_point(axes: Axes, series: Series, style: LineStyle) -> None:
    errors = None
    if series.low:
        ends = list(zip(series.x, series.low, series.high, strict=True))
        errors = [[x - low for x, low, _ in ends], [high - x for x, _, high in ends]]
    axes.errorbar(series.x, series.y, xerr=errors, color=style.colour, fmt="o", ms=7, lw=2, capsize=4)


def _finish(axes: Axes, plot: Plot, view: View) -> None:
    """Set scales and ticks, and mark zero."""
    if plot.zero_line:
        mark = axes.axvline if plot.variant_rows else axes.axhline
        mark(0, color=SOFT, lw=1, ls=":")
    if view.log_x:
        axes.set_xscale("log")
    if view.log_y:
        axes.set_yscale("log")
    if view.ticks:
        axes.set_xticks(view.ticks, [f"{tick:g}" for tick in view.ticks])
        axes.set_xticks([], minor=True)
    if plot.variant_rows:
        axes.margins(y=0.15)
        axes.invert_yaxis()
