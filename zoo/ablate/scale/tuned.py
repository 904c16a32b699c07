"""Divides the runs of a table into those that choose a learning rate and those that compare variants at it.

Several rates at one size are its tuning. The chosen rate is that with the most runs or, among equals, with
the lowest mean loss. The tuning loss of the winner is too low by selection, so that runs that chose the rate
count in the comparison only if there are no others. If a table does not mark these runs, they are those of a
budget and seed with several rates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from zoo.ablate.scale.runs import AGAIN, FinishedRun, RunTable
from zoo.ablate.scale.tuning import Parabola, at_border, vertex
from zoo.utils.errors import DataError, did_you_mean

FEWEST_HALVED = 2
"""Smallest number of seeds for a comparison of the baseline with itself."""


@dataclass(frozen=True)
class TunedSize:
    """The runs of one variant at one size.

    Attributes:
        compared: the runs of the comparison, at the chosen rate.
        rate: the chosen rate; None if the table has none.
        tried: the mean loss of every tried rate, at the budget with the most rates; just one entry without
            tuning.
        seeds: number of seeds with which each rate was tried.
        problem: the reason why the size has no verdict; empty if it has one.
        reused: whether runs that chose the rate count in the comparison, because there are no others.
        dropped: the runs at other rates that are no tuning: neither marked as such, nor of a seed and budget
            with several rates.
    """

    compared: tuple[FinishedRun, ...]
    rate: float | None
    tried: Mapping[float, float]
    seeds: int = 1
    problem: str = ""
    reused: bool = False
    dropped: tuple[FinishedRun, ...] = ()

    @property
    def tuned(self) -> bool:
        """Whether more than one rate was tried."""
        return len(self.tried) > 1

    @property
    def interpolated(self) -> bool:
        """Whether the chosen rate lies between two that were tried."""
        return self.rate not in self.tried

    @property
    def parabola(self) -> Parabola | None:
        """The loss over ln rate near the best tried rate; None at a border or beside a diverged run."""
        if len(self.tried) < 3 or at_border(self.tried):
            return None
        try:
            return vertex(self.tried)
        except ValueError:
            return None


def tuned_sizes(runs: Sequence[FinishedRun], left_out: Sequence[FinishedRun] = ()) -> dict[float, TunedSize]:
    """The runs of one variant by size, ascending.

    Args:
        runs: the runs of the variant.
        left_out: further runs of it that were left out before because of their rates, see `halved`.
    """
    sizes = {size: _tuned([run for run in runs if run.size == size]) for size in {run.size for run in runs}}
    return {
        size: replace(side, dropped=(*side.dropped, *(run for run in left_out if run.size == size)))
        for size, side in sorted(sizes.items())
    }


def halved(table: RunTable, baseline: str) -> RunTable:
    """Prepare a comparison of the baseline with itself: every other seed becomes a variant.

    Any verdict other than "equal" or "undecided" is then an alarm about the set-up. Runs of the tuning are
    left out; those at other rates, which are none, are kept to be named.

    Raises:
        DataError: There is no such baseline, or it has fewer than `FEWEST_HALVED` seeds.
    """
    if baseline not in table.variants:
        raise DataError(f"no variant called '{baseline}'{did_you_mean(baseline, table.variants)}")
    sizes = tuned_sizes(table.of(baseline)).values()
    ours = [run for side in sizes for run in side.compared]
    seeds = sorted({run.seed for run in ours})
    if len(seeds) < FEWEST_HALVED:
        raise DataError(
            f"--aa: '{baseline}' has {len(seeds)} seeds; expected at least {FEWEST_HALVED}, half of them "
            "for each side"
        )
    again = set(seeds[1::2])

    def divided(runs: Iterable[FinishedRun]) -> tuple[FinishedRun, ...]:
        return tuple(
            replace(run, variant=f"{baseline}{AGAIN}" if run.seed in again else baseline) for run in runs
        )

    return RunTable(divided(ours), left_out=divided(run for side in sizes for run in side.dropped))


def _tuned(runs: Sequence[FinishedRun]) -> TunedSize:
    rates = sorted({run.rate for run in runs if run.rate is not None})
    if len(rates) < 2:
        rate = rates[0] if rates else None
        return TunedSize(tuple(runs), rate, {} if rate is None else {rate: fmean(run.loss for run in runs)})
    trials: dict[tuple[float, int], set[float]] = defaultdict(set)
    for run in runs:
        assert run.rate is not None  # `check_runs` refuses sizes where only some runs have a rate
        trials[run.tokens, run.seed].add(run.rate)
    choosing = [
        run for run in runs if (len(trials[run.tokens, run.seed]) > 1 if run.tuning is None else run.tuning)
    ]
    curves: dict[float, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in choosing or runs:
        assert run.rate is not None  # as above
        curves[run.tokens][run.rate].append(run.loss)
    curve = max(curves.values(), key=len)
    tried = {rate: fmean(curve[rate]) for rate in sorted(curve)}
    counts = {rate: sum(run.rate == rate for run in runs) for rate in rates}
    chosen = min(rates, key=lambda rate: (-counts[rate], tried.get(rate, math.inf)))
    at_chosen = [run for run in runs if run.rate == chosen]
    fresh = [run for run in at_chosen if run not in choosing]
    kept = {run.tokens for run in fresh}
    compared = [run for run in at_chosen if run in fresh or run.tokens not in kept]
    return TunedSize(
        tuple(compared),
        chosen,
        tried,
        min(map(len, curve.values())),
        _problem(chosen, tried),
        reused=len(compared) > len(fresh),
        dropped=tuple(run for run in runs if run.rate != chosen and run not in choosing),
    )


def _problem(chosen: float, tried: Mapping[float, float]) -> str:
    lowest, highest = min(tried), max(tried)
    tested = f"{lowest:g} to {highest:g}"
    if len(tried) > 1 and at_border(tried):
        best = min(tried, key=lambda rate: tried[rate])
        return f"the best rate, {best:g}, lies at the border of {tested}"
    if not lowest <= chosen <= highest:
        return f"the rate of the comparison, {chosen:g}, lies outside the rates tried, {tested}"
    return ""
