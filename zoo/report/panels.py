"""Pictures of several panels with one legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.diagnose.history import Curve
from zoo.report.style import line_styles
from zoo.utils.plotting import INK, SOFT, dress, literal, new_figure
from zoo.utils.untyped import Passed

WIDTH = 11.0
"""The width of a figure of panels, in inches."""


def panels(count: int, columns: int = 2, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """An empty figure of `count` panels, filled row by row; `height` is that of one row, in inches."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(WIDTH, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def draw_curves(
    axes: Axes, title: str, x: str, y: str, curves: Mapping[str, Curve], order: Sequence[str], log: bool
) -> None:
    """Draw named curves into a panel; a name has the same style in all panels of a figure.

    Args:
        axes: the panel.
        title: title of the panel.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        curves: the curves by name.
        order: the names in all panels of the figure; the position of a name decides its style.
        log: whether the vertical axis is logarithmic; values of 0 and less are then left out.
    """
    dress(axes, title, x, y)
    styles = line_styles(order)
    for name, curve in curves.items():
        draw_line(axes, curve, log, label=literal(name), marker="o", ms=2.5, **styles[name].matplotlib)
    if log:
        axes.set_yscale("log")
        axes.tick_params(which="minor", colors=SOFT, length=0, labelsize=8)


def draw_line(axes: Axes, curve: Curve, log: bool, **style: Passed) -> None:
    """Draw a curve without the points that have no value or, on a logarithmic axis, no positive one.

    Args:
        axes: the panel.
        curve: the curve; nothing is drawn if no point is left.
        log: whether the vertical axis is logarithmic.
        **style: arguments of `Axes.plot`.
    """
    kept = [(x, y) for x, y in zip(*curve, strict=True) if y is not None and (y > 0 or not log)]
    if kept:
        style.setdefault("lw", 1.4)
        axes.plot(*zip(*kept, strict=True), **style)


def integer_ticks(axes: Axes) -> None:
    """Put the ticks of the horizontal axis at integers, as for layers."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend for several panels at the right of the figure."""
    handles = {label: h for a in axes for h, label in zip(*a.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside right upper",
            frameon=False,
            labelcolor=INK,
            fontsize=8,
        )
