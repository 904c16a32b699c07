"""Plots for plotly.js, as plain data; `page.js` gives them the colours of the page and lets them react."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isfinite
from typing import Any

from zoo.report.look import Look
from zoo.report.plot import Plot, Series, View

DIGITS = 6
"""Significant digits of what is drawn; the tables and files have all."""

ROW = 34
"""Height of a row in pixels."""

LEGEND = 19
"""Height of a line of the legend."""


def figures(plot: Plot, looks: Mapping[str, Look]) -> dict[str, Any]:
    """A plot as plotly.js and `page.js` take it.

    Args:
        plot: what to draw.
        looks: by variant.

    Returns:
        Its key, and for each view the name, traces and layout.
    """
    return {
        "key": plot.key,
        "views": [
            {
                "name": view.name,
                "data": [t for series in view.series for t in _traces(plot, series, looks[series.variant])],
                "layout": _layout(plot, view),
            }
            for view in plot.views
        ],
    }


def _traces(plot: Plot, series: Series, look: Look) -> Iterator[dict[str, Any]]:
    """The spread, and on it the line or points."""
    common = {
        "name": escape(series.name, quote=False),  # plotly.js reads some markup
        "legendgroup": f"run {series.name}" if series.own else series.variant,
        "x": _numbers(series.x),
        "y": [escape(str(name), quote=False) for name in series.y] if plot.rows else _numbers(series.y),
    }
    if plot.rows:
        yield {**common, "type": "scatter", "mode": "markers", "showlegend": False} | _row(series, look)
        return
    if series.low:
        there_and_back = [*common["x"], *reversed(common["x"])]
        yield {
            **common,
            "x": there_and_back,
            "y": [*_numbers(series.high), *reversed(_numbers(series.low))],
            "type": "scatter",
            "mode": "lines",
            "fill": "toself",
            "fillcolor": look.colour + "2e",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    few = len(series.x) <= 30 and not series.thin
    yield {
        **common,
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "line": {"color": look.colour, "dash": look.dash, "width": 1 if series.thin else 2},
        "marker": {"color": look.colour, "size": 5},
        "showlegend": series.listed,
        "hovertemplate": "%{y:.5g} at %{x:.5s}",
    }


def _row(series: Series, look: Look) -> dict[str, Any]:
    """A point with its spread to both sides."""
    row: dict[str, Any] = {
        "marker": {"color": look.colour, "size": 10},
        "hovertemplate": "%{y}: %{x:.5g}<extra></extra>",
    }
    if series.low:
        ends = zip(series.x, series.low, series.high, strict=True)
        plus, minus = zip(*((high - x, x - low) for x, low, high in ends), strict=True)
        row["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": _numbers(plus),
            "arrayminus": _numbers(minus),
            "color": look.colour,
            "thickness": 2,
            "width": 5,
        }
    return row


def _layout(plot: Plot, view: View) -> dict[str, Any]:
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"title": {"text": view.x}, "automargin": True},
        "yaxis": {"title": {"text": view.y}, "automargin": True},
    }
    for axis, logarithmic in (("xaxis", view.log_x), ("yaxis", view.log_y)):
        axes[axis] |= {"type": "log"} if logarithmic else {}
    if view.ticks:
        axes["xaxis"] |= {"tickvals": list(view.ticks), "ticktext": [f"{tick:g}" for tick in view.ticks]}
    if plot.rows:
        axes["yaxis"] |= {"type": "category", "range": [_rows(view) - 0.4, -0.6]}
    else:
        axes["xaxis"]["hoverformat"] = ".5s"
    zero: dict[str, Any] = {"type": "line", "line": {"width": 1, "dash": "dot"}}
    zero |= (
        {"x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
        if plot.rows
        else {"y0": 0, "y1": 0, "xref": "paper", "x0": 0, "x1": 1}
    )
    return {
        **axes,
        "height": 110 + ROW * _rows(view) if plot.rows else 410 + LEGEND * _legend_lines(view),
        "hovermode": "closest",
        "margin": {"l": 60, "r": 16, "t": 12, "b": 50},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "shapes": [zero] if plot.zero else [],
    }


def _legend_lines(view: View) -> int:
    """About how many lines the legend takes on a desktop."""
    return 1 + sum(50 + 7 * len(series.name) for series in view.series if series.listed) // 1000


def _rows(view: View) -> int:
    return len({name for series in view.series for name in series.y})


def _numbers(values: Sequence[Any]) -> list[float | None]:
    """Rounded, and with a gap where there is no number."""
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values]
