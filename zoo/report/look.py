"""One look per variant, the same in every plot and table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zoo.utils.plotting import COLOURS, colour

DASHES = ("solid", "dash", "dot", "dashdot")
"""Lines beyond the last colour repeat the colours with other dashes."""


@dataclass(frozen=True)
class Look:
    """How a variant is drawn: colour as #rrggbb, and one of `DASHES`."""

    colour: str
    dash: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in order; they repeat after 32."""
    return {
        name: Look(colour(i), DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
    }
