"""The picture of a comparison: validation loss large, training loss behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from zoo.plotting import INK, colour, dress
from zoo.report.runs import Run


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
