"""The search for a learning rate as a function of losses: a grid, a parabola, points beyond a border."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zoo.ablate.scale.tuning import (
    FEWEST_ON_LINE,
    MOST_EXTENSIONS,
    best_tried,
    equal_steps,
    extension,
    ln_vertex,
    rate_line,
)

FULL_GRIDS = FEWEST_ON_LINE
"""Number of smallest sizes that are tuned over the whole grid; larger ones are tuned over a bracket."""
BRACKET = 3
"""Number of rates that are tried at a size where the grid is a bracket."""
DIGITS = 3
"""Number of significant digits of a computed rate."""


@dataclass(frozen=True)
class RateSearch:
    """The state of the search for the best rate.

    Attributes:
        rates: the rates to train, in the order of their selection.
        ln_best: ln of the best rate; None while losses are missing, or at the border.
        at_border: whether the search has ended at the border, so that there is no verdict.
        until: the index of the rung up to which each rate is trained; the last rung is the end of a run.
        dropped: the rates that halving has stopped at these rungs.
    """

    rates: tuple[float, ...]
    ln_best: float | None = None
    at_border: bool = False
    until: Mapping[float, int] = field(default_factory=dict)
    dropped: frozenset[float] = frozenset()

    @property
    def ended(self) -> bool:
        """Whether no rate needs further training."""
        return self.ln_best is not None or self.at_border


def search(start: Sequence[float], *losses: Callable[[float], float | None], keep: float = 1.0) -> RateSearch:
    """Stop rates early, extend a grid at its border, and take the vertex of the parabola.

    At each early rung the share `keep` of the rates continues, always including the best one so far with its
    neighbours, which the parabola needs. If the best rate at the end has a neighbour that was stopped, this
    neighbour is trained to the end after all.

    Args:
        start: rates, ascending by equal factors.
        *losses: a function for each rung that returns the mean loss at a rate, or None if it is not known
            yet. The last rung is the end of a run.
        keep: the share of the rates that continues after each early rung, rounded up.
    """
    *early, loss = losses
    rates, alive = list(start), list(start)
    until = dict.fromkeys(rates, 0)
    for rung, at_rung in enumerate(early):
        until |= dict.fromkeys(alive, rung)
        known = {rate: value for rate in alive if (value := at_rung(rate)) is not None}
        if len(known) < len(alive):
            return RateSearch(tuple(rates), until=until, dropped=frozenset(rates) - {*alive})
        alive = _survivors(known, keep)
    until |= dict.fromkeys(alive, len(early))
    while True:
        known = {rate: value for rate in alive if (value := loss(rate)) is not None}
        state = RateSearch(tuple(rates), until=dict(until), dropped=frozenset(rates) - {*alive})
        if len(known) < len(alive):
            return state
        ascending = sorted(rates)
        best = ascending.index(best_tried(known))
        missing = [rate for rate in ascending[max(0, best - 1) : best + 2] if rate not in known]
        if not missing and 0 < best < len(rates) - 1:
            return replace(state, ln_best=ln_vertex(known))
        if not missing and len(rates) == len(start) + MOST_EXTENSIONS:
            return replace(state, at_border=True)
        if not missing:
            missing = [rounded(extension(known))]
            rates += missing
        alive += missing
        until |= dict.fromkeys(missing, len(early))


def _survivors(losses: Mapping[float, float], keep: float) -> list[float]:
    """The rates that continue, ascending: the best ones, and the neighbours of the very best."""
    rates = sorted(losses)
    ranking = sorted(rates, key=lambda rate: losses[rate])
    best = rates.index(ranking[0])
    kept = {*ranking[: math.ceil(keep * len(rates))], *rates[max(0, best - 1) : best + 2]}
    return [rate for rate in rates if rate in kept]


def bracket(grid: Sequence[float], best_rates: Mapping[float, float], ln_params: float) -> tuple[float, ...]:
    """The initial rates at a size: the grid, or three around the line through the smaller sizes.

    Args:
        grid: the grid of the smallest sizes.
        best_rates: ln of the best rate by ln parameters.
        ln_params: ln of the parameters of the size.
    """
    if len(best_rates) < FULL_GRIDS:
        return tuple(grid)
    line = np.polyfit(list(best_rates), list(best_rates.values()), 1)
    return around(float(np.polyval(line, ln_params)), grid)


def around(ln_rate: float, grid: Sequence[float]) -> tuple[float, ...]:
    """Three rates as far apart as those of a grid, the middle one of which is given by its ln."""
    factor = equal_steps(tuple(grid))
    assert factor is not None  # the schema requires equal factors
    return tuple(rounded(math.exp(ln_rate) * factor ** (k - BRACKET // 2)) for k in range(BRACKET))


def chosen_rate(best_rates: Mapping[float, float], ln_params: float) -> float:
    """The rate of the comparison: on the line through the sizes tuned so far, or the vertex of this size.

    The line uses the sizes up to this one, and no larger ones, so that a size can be trained to the end
    before the next one is tuned. Therefore a sweep that is stopped has a result, and sizes can be added.

    Args:
        best_rates: ln of the best rate by ln parameters, including this size.
        ln_params: ln of the parameters of this size.
    """
    line = rate_line(best_rates)
    ln_rate = best_rates[ln_params] if line is None else line[0] * ln_params + line[1]
    return rounded(math.exp(ln_rate))


def rounded(rate: float) -> float:
    """The rate rounded to `DIGITS` significant digits."""
    return float(f"{rate:.{DIGITS}g}")
