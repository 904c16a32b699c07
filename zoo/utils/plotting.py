"""The look of all pictures: colours, axes."""

from __future__ import annotations

from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7030d0", "#705030")
"""Distinguishable with every kind of colour blindness: Okabe and Ito's (2008), with violet and brown for
yellow, which white paper swallows, and black, which a dark page does; they repeat after eight."""

INK, SOFT, LINE = "#1d2433", "#5d6678", "#e3e7ee"


def colour(index: int) -> str:
    """The colour of the run at a position."""
    return COLOURS[index % len(COLOURS)]


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    """The look of a panel: its title, what is on the axes, and no frame."""
    axes.set_title(title, loc="left", color=INK, fontweight="bold", fontsize=12)
    axes.set_xlabel(x, color=SOFT)
    axes.set_ylabel(y, color=SOFT)
    axes.tick_params(colors=SOFT, length=0)
    axes.grid(color=LINE, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
