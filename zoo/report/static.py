"""Plots as pictures, for paper and for pages without scripts."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zoo.report.look import Look
from zoo.report.plot import Plot, Series, View
from zoo.utils.plotting import INK, SOFT, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}

LETTERS = 110
"""Of the legend in a line."""


def picture(plot: Plot, looks: Mapping[str, Look]) -> bytes:
    """The first view of a plot as a PNG; the same plot gives the same bytes.

    Args:
        plot: what to draw.
        looks: by variant.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    view = plot.views[0]
    listed = [] if plot.rows else list(dict.fromkeys(s.variant for s in view.series))
    columns = max(1, LETTERS // (6 + max(map(len, listed), default=0)))
    rows = len({name for series in view.series for name in series.y}) if plot.rows else 0
    height = 1.2 + 0.35 * rows if plot.rows else 4.3 + 0.2 * (len(listed) / columns)
    figure = Figure(figsize=(9, height), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    dress(axes, plot.title, view.x, view.y)
    for series in view.series:
        draw = _row if plot.rows else _line
        draw(axes, series, looks[series.variant])
    _finish(axes, plot, view)
    if listed:
        lines = [Line2D([], [], color=looks[v].colour, ls=STYLES[looks[v].dash], label=v) for v in listed]
        figure.legend(
            handles=lines, loc="outside lower left", ncols=columns, frameon=False, labelcolor=INK, fontsize=9
        )
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _line(axes: Axes, series: Series, look: Look) -> None:
    if series.low:
        axes.fill_between(series.x, series.low, series.high, color=look.colour, alpha=0.18, lw=0)
    few = len(series.x) <= 30 and not series.thin
    axes.plot(
        series.x,
        series.y,
        color=look.colour,
        ls=STYLES[look.dash],
        lw=0.8 if series.thin else 1.8,
        marker="o" if few else "",
        ms=3.5,
    )


def _row(axes: Axes, series: Series, look: Look) -> None:
    spread = None
    if series.low:
        ends = list(zip(series.x, series.low, series.high, strict=True))
        spread = [[x - low for x, low, _ in ends], [high - x for x, _, high in ends]]
    axes.errorbar(series.x, series.y, xerr=spread, color=look.colour, fmt="o", ms=7, lw=2, capsize=4)


def _finish(axes: Axes, plot: Plot, view: View) -> None:
    """Scales, and the mark at zero."""
    if plot.zero:
        mark = axes.axvline if plot.rows else axes.axhline
        mark(0, color=SOFT, lw=1, ls=":")
    if view.log_x:
        axes.set_xscale("log")
    if view.log_y:
        axes.set_yscale("log")
    if view.ticks:
        axes.set_xticks(view.ticks, [f"{tick:g}" for tick in view.ticks])
        axes.set_xticks([], minor=True)
    if plot.rows:
        axes.margins(y=0.15)
        axes.invert_yaxis()
