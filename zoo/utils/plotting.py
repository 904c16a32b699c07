"""The common style of all pictures: colours, figures, axes."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7030d0", "#705030")
"""Colours that are distinguishable with every kind of colour blindness: those of Okabe and Ito (2008), with
violet and brown instead of yellow and black, which are faint on white paper and on a dark page."""

INK, SOFT, LINE = "#1d2433", "#5d6678", "#e3e7ee"


def colour(index: int) -> str:
    """The colour of the line at a position; the colours repeat after eight."""
    return COLOURS[index % len(COLOURS)]


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of a size in inches, without a window."""
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file; the same figure gives the same bytes."""
    engine = figure.get_layout_engine()
    if engine is not None:  # `savefig` would draw the figure twice for it, with the same result
        engine.execute(figure)
        figure.set_layout_engine(None)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def literal(text: str) -> str:
    """A text in the form that matplotlib draws unchanged; it reads what is between two $ as a formula."""
    return text.replace("$", r"\$")


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    """Give axes a title and labels, a grid, and no frame."""
    axes.set_title(literal(title), loc="left", color=INK, fontweight="bold", fontsize=12)
    axes.set_xlabel(literal(x), color=SOFT)
    axes.set_ylabel(literal(y), color=SOFT)
    axes.tick_params(colors=SOFT, length=0)
    axes.grid(color=LINE, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
