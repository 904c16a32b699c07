"""The search for a learning rate, as a function of losses: a grid, a parabola, points beyond a border."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zoo.ablate.scale.tuning import MOST_EXTENSIONS, equal_steps, extension, vertex

FULL_GRIDS = 3
"""So many of the smallest sizes are tuned over the whole grid, larger ones over a bracket."""
STRAIGHT = 0.2
"""A line of ln rate over ln N is used if its residuals have no larger standard deviation."""
DIGITS = 3
"""Significant digits of a rate that is computed."""


@dataclass(frozen=True)
class RateSearch:
    """What is known of the best rate.

    Attributes:
        rates: those to be trained, in the order in which they are asked for.
        ln_best: ln of the best one; None as long as losses are missing, or at the border.
        at_border: whether the search has ended at the border: there is no verdict.
        until: for each rate the number of the rung that it is trained to, where the last is the end of a run.
        dropped: the rates that halving has stopped there.
    """

    rates: tuple[float, ...]
    ln_best: float | None = None
    at_border: bool = False
    until: Mapping[float, int] = field(default_factory=dict)
    dropped: frozenset[float] = frozenset()

    @property
    def ended(self) -> bool:
        """Whether no rate needs to be trained any more."""
        return self.ln_best is not None or self.at_border


def search(start: Sequence[float], *losses: Callable[[float], float | None], keep: float = 1.0) -> RateSearch:
    """Stop rates early, extend a grid at its border, and take the vertex of the parabola.

    At each early rung the share `keep` of the rates goes on, and always the best one so far with its
    neighbours, without which there would be no parabola. If the best rate at the end has a neighbour that was
    stopped, this neighbour is trained to the end after all.

    Args:
        start: rates, ascending by equal factors.
        *losses: at each rung, the last of which is the end of a run, the mean loss at a rate; None if it is
            not known yet.
        keep: the share of the rates that goes on after each early rung, rounded up.
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
        best = ascending.index(min(known, key=lambda rate: known[rate]))
        missing = [rate for rate in ascending[max(0, best - 1) : best + 2] if rate not in known]
        if not missing and 0 < best < len(rates) - 1:
            return replace(state, ln_best=_best(known))
        if not missing and len(rates) == len(start) + MOST_EXTENSIONS:
            return replace(state, at_border=True)
        if not missing:
            missing = [rounded(extension(known))]
            rates += missing
        alive += missing
        until |= dict.fromkeys(missing, len(early))


def _survivors(losses: Mapping[float, float], keep: float) -> list[float]:
    """The rates that go on, ascending: the best ones, and the neighbours of the very best."""
    rates = sorted(losses)
    ranking = sorted(rates, key=lambda rate: losses[rate])
    best = rates.index(ranking[0])
    kept = {*ranking[: math.ceil(keep * len(rates))], *rates[max(0, best - 1) : best + 2]}
    return [rate for rate in rates if rate in kept]


def _best(losses: Mapping[float, float]) -> float:
    """ln of the vertex; of the best rate where a run beside it diverged."""
    try:
        return vertex(losses).ln_rate
    except ValueError:
        return math.log(min(losses, key=lambda rate: losses[rate]))


def bracket(grid: Sequence[float], best_rates: Mapping[float, float], ln_params: float) -> tuple[float, ...]:
    """The rates to begin with at a size: the grid, or three about the line through the smaller sizes.

    Args:
        grid: that of the smallest sizes.
        best_rates: ln of the best rate by ln parameters.
        ln_params: of the size.
    """
    if len(best_rates) < FULL_GRIDS:
        return tuple(grid)
    factor = equal_steps(tuple(grid))
    assert factor is not None  # the schema asks for equal factors
    line = np.polyfit(list(best_rates), list(best_rates.values()), 1)
    middle = math.exp(float(np.polyval(line, ln_params)))
    return tuple(rounded(middle * factor**k) for k in (-1, 0, 1))


def chosen_rate(best_rates: Mapping[float, float], ln_params: float) -> float:
    """The rate of the comparison: on the line through the sizes tuned so far, else the vertex of this size.

    The line goes through the sizes up to this one, and not through larger ones, so that a size is trained to
    the end before the next one is tuned: a sweep that is stopped has a result, and sizes can be added.

    Args:
        best_rates: ln of the best rate by ln parameters, this size included.
        ln_params: of this size.
    """
    x, y = np.array(list(best_rates)), np.array(list(best_rates.values()))
    if len(best_rates) >= FULL_GRIDS:
        line = np.polyfit(x, y, 1)
        rest = y - np.polyval(line, x)
        if math.sqrt(float(rest @ rest) / (len(x) - 2)) < STRAIGHT:
            return rounded(math.exp(float(np.polyval(line, ln_params))))
    return rounded(math.exp(best_rates[ln_params]))


def rounded(rate: float) -> float:
    """With `DIGITS` significant digits."""
    return float(f"{rate:.{DIGITS}g}")
