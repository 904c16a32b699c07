"""A figure with what it says, and the panels it is made of."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.utils.plotting import INK, SOFT, colour, dress

STYLES = ("-", "--", ":", "-.")
"""Of lines, when the colours have been used up."""

COLOURS = 8
"""How many there are."""

Curve = tuple[Sequence[float], Sequence[float | None]]
"""Where, and how much; None is left out."""


@dataclass(frozen=True)
class Section:
    """Part of a page.

    Attributes:
        name: short, for a file name.
        title: what is shown.
        caption: how it is defined and how to read it.
        figure: the picture.
    """

    name: str
    title: str
    caption: str
    figure: Figure

    def png(self) -> bytes:
        """The picture as a PNG, the same bytes for the same picture."""
        file = io.BytesIO()
        self.figure.savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()


def panels(
    count: int, columns: int = 2, height: float = 3.2, width: float = 11.0
) -> tuple[Figure, list[Axes]]:
    """An empty figure of `count` panels, row by row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in every[count:]:
        unused.remove()
    return figure, every[:count]


def draw_curves(
    axes: Axes, title: str, x: str, y: str, curves: Mapping[str, Curve], order: Sequence[str], log: bool
) -> None:
    """Lines with a name each; a name looks alike in all panels.

    Args:
        axes: the panel.
        title: of the panel.
        x: what goes to the right.
        y: what goes up.
        curves: by name.
        order: all names that the panels of the figure share, which decides how they look.
        log: whether the scale upwards is logarithmic, where values of 0 are left out.
    """
    dress(axes, title, x, y)
    for name, curve in curves.items():
        draw_line(axes, curve, log, label=name, marker="o", ms=2.5, **look(order.index(name)))
    if log:
        axes.set_yscale("log")
        axes.tick_params(which="minor", colors=SOFT, length=0, labelsize=8)


def draw_line(axes: Axes, curve: Curve, log: bool, **style: Any) -> None:
    """One line, without what cannot be drawn; nothing if that is all."""
    kept = [(x, y) for x, y in zip(*curve, strict=True) if y is not None and (y > 0 or not log)]
    if kept:
        axes.plot(*zip(*kept, strict=True), **{"lw": 1.4} | style)


def by_layer(axes: Axes) -> None:
    """Whole numbers to the right."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of the line at a position."""
    return {"color": colour(index), "ls": STYLES[index // COLOURS % len(STYLES)]}


def legend(figure: Figure, every: Sequence[Axes]) -> None:
    """One legend for all panels, at the right of the figure."""
    handles = {label: h for axes in every for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside right upper",
            frameon=False,
            labelcolor=INK,
            fontsize=8,
        )
