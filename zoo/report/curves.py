"""The picture of a comparison: validation loss large, training loss behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from zoo.report.runs import Run

COLOURS = ("#2563eb", "#e4572e", "#12946b", "#8b5cf6", "#c2850c", "#d6387f", "#0f8fb3", "#6b7280")
"""Distinguishable with the usual colour blindness in the order of use; they repeat after eight."""

INK, SOFT, LINE = "#1d2433", "#5d6678", "#e3e7ee"


def colour(index: int) -> str:
    """The colour of the run at a position."""
    return COLOURS[index % len(COLOURS)]


def draw(runs: Sequence[Run], file: BinaryIO) -> None:
    """Draw the loss curves of runs over training tokens, as a PNG.

    Args:
        runs: what to show, in the order of the legend.
        file: gets the picture.
    """
    figure = Figure(figsize=(11, 5), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for i, run in enumerate(runs):
        left.plot(*_learning(run.validation), color=colour(i), lw=2, marker="o", ms=3.5, label=run.name)
        right.plot(*run.train, color=colour(i), lw=1.2, label=run.name)
    for axes, title in ((left, "Validation loss"), (right, "Training loss")):
        dress(axes, title, "training tokens", "nats per token")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    left.legend(frameon=False, labelcolor=INK)
    figure.savefig(file, format="png", metadata={"Software": None})


def _learning(curve: tuple[list[float], list[float]]) -> tuple[list[float], list[float]]:
    """Without the loss before the first step, which would flatten all the rest."""
    tokens, losses = curve
    return (tokens[1:], losses[1:]) if tokens and tokens[0] == 0 and len(tokens) > 2 else curve


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    """The look of a panel: its title, what is on the axes, and no frame."""
    axes.set_title(title, loc="left", color=INK, fontweight="bold", fontsize=12)
    axes.set_xlabel(x, color=SOFT)
    axes.set_ylabel(y, color=SOFT)
    axes.tick_params(colors=SOFT, length=0)
    axes.grid(color=LINE, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
