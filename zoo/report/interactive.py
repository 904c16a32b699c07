"""Plots as plain data for plotly.js; `page.js` adds the colours of the page and the controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isfinite, log10
from typing import Any

from zoo.report.plot import Arrow, Plot, Series, View
from zoo.report.style import LineStyle
from zoo.utils.untyped import JsonObject

DIGITS = 6
"""Number of significant digits of drawn numbers; tables and CSV files have full precision."""

ROW_HEIGHT, LEGEND_LINE_HEIGHT = 34, 19
"""Height of a plot in pixels."""


def plotly_figure(plot: Plot, styles: Mapping[str, LineStyle]) -> JsonObject:
    """Convert a plot to the form that `page.js` expects.

    Args:
        plot: the plot.
        styles: colours and dashes by variant.

    Returns:
        The key of the plot, and for each view its name, its traces and its layout.
    """
    return {
        "key": plot.key,
        "views": [
            {
                "name": view.name,
                "data": [t for series in view.series for t in _traces(plot, series, styles[series.variant])],
                "layout": _layout(plot, view, styles),
            }
            for view in plot.views
        ],
    }


def _traces(plot: Plot, series: Series, style: LineStyle) -> Iterator[JsonObject]:
    """The traces of a series: the band, and the line or the point in front of it."""
    common: JsonObject = {
        "type": "scatter",
        "name": escape(series.name, quote=False),  # plotly.js interprets some tags
        "legendgroup": f"run {series.name}" if series.single_run else series.variant,
        "x": _rounded(series.x),
    }
    if plot.variant_rows:
        yield common | _point(series, style)
        return
    common["y"] = _rounded(series.y)
    if series.points:
        yield common | _points(series, style)
        return
    if series.low:
        yield common | {
            "x": [*common["x"], *reversed(common["x"])],
            "y": [*_rounded(series.high), *reversed(_rounded(series.low))],
            "mode": "lines",
            "fill": "toself",
            "line": {"width": 0},
            **_filled(series, style),
            "hoverinfo": "skip",
            "showlegend": False,
        }
    yield common | {
        "mode": "lines+markers" if series.has_markers else "lines",
        "line": {
            "color": style.colour,
            "dash": "dot" if series.beyond else style.dash,
            "width": 1 if series.single_run else 2,
        },
        "marker": {"color": style.colour, "size": 5},
        "showlegend": series.in_legend,
        "hovertemplate": "%{y:.5g} at %{x:.5s}",
    }


def _filled(series: Series, style: LineStyle) -> JsonObject:
    """The fill of a band: a colour or hatching."""
    if not series.beyond:
        return {"fillcolor": style.colour + "2e"}
    return {"fillpattern": {"shape": "/", "fgcolor": style.colour + "8c", "size": 7}, "fillcolor": "#0000"}


def _points(series: Series, style: LineStyle) -> JsonObject:
    """Points with error bars around y."""
    points: JsonObject = {
        "x": _rounded(series.drawn_x),
        "customdata": _rounded(series.x),
        "mode": "markers",
        "showlegend": series.in_legend,
        "marker": {"color": style.colour, "size": 7},
        "hovertemplate": "%{y:.5g} at %{customdata:.5s}",
    }
    if series.low:
        y = [float(value) for value in series.y]
        points["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": _rounded([high - v for v, high in zip(y, series.high, strict=True)]),
            "arrayminus": _rounded([v - low for v, low in zip(y, series.low, strict=True)]),
            "color": style.colour,
        }
    return points


def _point(series: Series, style: LineStyle) -> JsonObject:
    """A point with its error bar."""
    point: JsonObject = {
        "y": [escape(str(name), quote=False) for name in series.y],
        "mode": "markers",
        "showlegend": False,
        "marker": {"color": style.colour, "size": 10},
        "hovertemplate": "%{y}: %{x:.5g}<extra></extra>",
    }
    if series.low:
        point["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": _rounded([high - x for x, high in zip(series.x, series.high, strict=True)]),
            "arrayminus": _rounded([x - low for x, low in zip(series.x, series.low, strict=True)]),
            "color": style.colour,
            "thickness": 2,
            "width": 5,
        }
    return point


def _layout(plot: Plot, view: View, styles: Mapping[str, LineStyle]) -> JsonObject:
    x: JsonObject = {"title": {"text": view.x}, "automargin": True} | ({"type": "log"} if view.log_x else {})
    y: JsonObject = {"title": {"text": view.y}, "automargin": True} | ({"type": "log"} if view.log_y else {})
    if plot.from_zero:
        (x if plot.variant_rows else y)["rangemode"] = "tozero"
    if view.ticks:
        x |= {"tickvals": list(view.ticks), "ticktext": view.tick_texts}
    if view.limits:
        axis, logarithmic = (x, view.log_x) if plot.variant_rows else (y, view.log_y)
        axis |= {"range": [log10(end) if logarithmic else end for end in view.limits]}
    if plot.variant_rows:
        y |= {"type": "category", "range": [len(view.rows) - 0.4, -0.6]}
        height = 110 + ROW_HEIGHT * len(view.rows)
        marked: JsonObject = {"x0": plot.marked, "x1": plot.marked, "yref": "paper", "y0": 0, "y1": 1}
    else:
        x["hoverformat"] = ".5s"
        # About as many lines as the legend has on a desktop.
        legend_lines = 1 + sum(50 + 7 * len(series.name) for series in view.series) // 1000
        height = 410 + LEGEND_LINE_HEIGHT * legend_lines
        marked = {"y0": plot.marked, "y1": plot.marked, "xref": "paper", "x0": 0, "x1": 1}
    return {
        "xaxis": x,
        "yaxis": y,
        "height": height,
        "hovermode": "closest",
        "margin": {"l": 60, "r": 16, "t": 12, "b": 50},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "shapes": [marked | {"type": "line", "line": {"width": 1, "dash": "dot"}}]
        * (plot.marked is not None),
        "annotations": [_arrow(arrow, view, styles[arrow.variant]) for arrow in view.arrows],
    }


def _arrow(arrow: Arrow, view: View, style: LineStyle) -> JsonObject:
    """An arrow as an annotation without text; plotly needs logarithms on a logarithmic axis."""
    x, ax = (log10(value) if view.log_x else value for value in (arrow.end, arrow.start))
    y = log10(arrow.y) if view.log_y else arrow.y
    return {
        "text": "",
        "x": x,
        "ax": ax,
        "y": y,
        "ay": y,
        "xref": "x",
        "axref": "x",
        "yref": "y",
        "ayref": "y",
        "showarrow": True,
        "arrowhead": 2,
        "arrowwidth": 2,
        "arrowcolor": style.colour,
    }


def _rounded(values: Sequence[Any]) -> list[float | None]:  # Any: numbers; names come as a `_point`
    """Numbers with `DIGITS` digits; infinite numbers and NaN become None, which plotly draws as a gap."""
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values]
