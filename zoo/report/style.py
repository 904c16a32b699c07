"""Colours and dashes of lines: a variant looks the same in every plot and table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zoo.utils.plotting import COLOURS, colour
from zoo.utils.untyped import Kwargs

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""The dash patterns in the order of their use: plotly's names and matplotlib's."""


@dataclass(frozen=True)
class LineStyle:
    """The style of a line in the plots of a report.

    Attributes:
        colour: the colour as #rrggbb.
        dash: one of `DASHES`.
    """

    colour: str
    dash: str

    @property
    def matplotlib(self) -> Kwargs:
        """Keyword arguments of `matplotlib.axes.Axes.plot`, whose values have different types."""
        return {"color": self.colour, "ls": DASHES[self.dash]}


def line_style(index: int) -> LineStyle:
    """The style of the line at a position: the colours in turn, then again with the next dash pattern."""
    return LineStyle(colour(index), list(DASHES)[index // len(COLOURS) % len(DASHES)])


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """A style for each name, in the order of the names; the styles repeat after 32 names."""
    return {name: line_style(i) for i, name in enumerate(dict.fromkeys(names))}
