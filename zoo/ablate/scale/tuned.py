"""Divides the runs of a table into those that choose a learning rate and those that compare variants at it.

Several rates at one size are its tuning. The chosen rate is that with the most runs or, among equals, with
the lowest mean loss. The tuning loss of the winner is too low by selection, so that runs that chose the rate
count in the comparison only if there are no others. If a table does not mark these runs, they are those of a
budget and seed with several rates.

Where a second key was tuned, such as the weight decay, all this holds of points: a rate with a value of the
second key. The parabola is then that of the rates that were tried at the second key's value in the
comparison. Without runs of the comparison there is no result, because the table does not show at which of the
points the tuning ended. Nor is there one where the table says which runs are of the comparison, as that of a
ladder does, and none of them has ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from zoo.ablate.scale.runs import AGAIN, FinishedRun, RunTable
from zoo.ablate.scale.tuning import Parabola, at_border, best_tried, equal_steps, fitted, vertex
from zoo.utils.errors import DataError

TunedPoint = tuple[float | None, float | None]
"""A rate and a value of the second key, see `FinishedRun.point`."""
FEWEST_OF_SEARCH = 3
"""Smallest number of values of a search over one key whose steps are equal."""
FEWEST_HALVED = 2
"""Smallest number of seeds for a comparison of the baseline with itself."""


@dataclass(frozen=True)
class TunedSize:
    """The runs of one variant at one size.

    Attributes:
        compared: the runs of the comparison, at the chosen rate.
        rate: the chosen rate; None if the table has none.
        tried: the mean loss of every tried rate, at the budget with the most rates and, if there is a second
            key, at the value of it in the comparison; just one entry without tuning.
        seeds: number of seeds with which each rate was tried.
        problem: the reason why the size has no verdict; empty if it has one.
        reused: whether runs that chose the rate count in the comparison, because there are no others.
        dropped: the runs at other rates that are no tuning: neither marked as such, nor of a seed and budget
            with several rates.
        second_key: the chosen value of the second key; None if there is none.
        second_tried: the mean loss of every tried value of the second key, at one rate; empty if it was not
            tuned.
        losses: the mean loss of every point that was tried.
        drawn: the range from which a random search drew the rates; None: it did not.
        stopped: whether halving stopped points of the tuning, whose losses are infinite here.
        by_parabola: whether values were computed from parabolas wherever there is one, see `RunTable`.
    """

    compared: tuple[FinishedRun, ...]
    rate: float | None
    tried: Mapping[float, float]
    seeds: int = 1
    problem: str = ""
    reused: bool = False
    dropped: tuple[FinishedRun, ...] = ()
    second_key: float | None = None
    second_tried: Mapping[float, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    drawn: tuple[float, float] | None = None
    stopped: bool = False
    by_parabola: bool = False

    @property
    def tuning_runs(self) -> int:
        """The number of runs that chose the rate and the second key."""
        return len(self.losses) * self.seeds if self.tuned else 0

    @property
    def tuned(self) -> bool:
        """Whether more than one rate was tried."""
        return len(self.tried) > 1

    @property
    def all_diverged(self) -> bool:
        """Whether rates were tried and none has a finite mean loss."""
        return self.tuned and not math.isfinite(min(self.losses))

    @property
    def interpolated(self) -> bool:
        """Whether the chosen rate is a computed one, and not the best of those that were tried."""
        of_grid = self.by_parabola and self.drawn is None  # a random search takes the best of its points
        return self.rate not in self.tried or (of_grid and self.parabola is not None)

    @property
    def second_interpolated(self) -> bool:
        """Whether the chosen value of the second key is a computed one, and not the best that was tried."""
        known = self.by_parabola and self.second_parabola is not None
        return self.second_key not in self.second_tried or known

    @property
    def parabola(self) -> Parabola | None:
        """The loss over ln rate near the best tried rate; None at a border or beside a diverged run.

        It is also None if two keys were drawn at random, where the losses over the rate show both.
        """
        if self.drawn is None:
            return _parabola(self.tried, vertex)
        return _parabola(self.tried, fitted) if self.second_key is None else None

    @property
    def second_parabola(self) -> Parabola | None:
        """The loss over the logarithm of the second key; None at a border or beside a diverged run."""
        return _parabola(self.second_tried, vertex) if self.drawn is None else None

    def share_within(self, loss: float) -> float | None:
        """The share of the tried points at most so much worse than the best one; None without tuning."""
        if not self.tuned or not math.isfinite(min(self.losses)):
            return None
        return fmean(value <= min(self.losses) + loss for value in self.losses)


def tuned_sizes(
    runs: Sequence[FinishedRun], left_out: Sequence[FinishedRun] = (), by_parabola: bool = False
) -> dict[float, TunedSize]:
    """The runs of one variant by size, ascending.

    Args:
        runs: the runs of the variant.
        left_out: further runs of it that were left out before because of their rates, see `halved`.
        by_parabola: that of the table, see `RunTable`.
    """
    sizes = {size: _tuned([run for run in runs if run.size == size]) for size in {run.size for run in runs}}
    return {
        size: replace(
            side,
            dropped=(*side.dropped, *(run for run in left_out if run.size == size)),
            by_parabola=by_parabola,
        )
        for size, side in sorted(sizes.items())
    }


def sides_of(table: RunTable) -> dict[str, dict[float, TunedSize]]:
    """The runs of every variant of a table, by size."""
    return {
        name: tuned_sizes(table.of(name), table.left_out_of(name), table.by_parabola)
        for name in table.variants
    }


def halved(table: RunTable, baseline: str) -> RunTable:
    """Prepare a comparison of the baseline with itself: every other seed becomes a variant.

    Any verdict other than "equal" or "undecided" is then an alarm about the set-up. Runs of the tuning are
    left out. Runs at other rates that are not of the tuning are kept, so that a caveat can name them.

    Raises:
        DataError: There is no such baseline, or it has fewer than `FEWEST_HALVED` seeds.
    """
    table.require_variant(baseline)
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

    dropped = divided(run for side in sizes for run in side.dropped)
    return replace(table, runs=divided(ours), speeds=None, left_out=dropped)


def _parabola(
    losses: Mapping[float, float], fit: Callable[[Mapping[float, float]], Parabola]
) -> Parabola | None:
    if len(losses) < 3:
        return None
    try:
        return fit(losses)
    except ValueError:
        return None


def _tuned(runs: Sequence[FinishedRun]) -> TunedSize:
    """Divide the runs of a variant at one size into those of the tuning and those of the comparison."""
    points = sorted({run.point for run in runs if run.rate is not None})
    if len(points) < 2:
        return _untuned(runs, points)
    choosing = _choosing(runs)
    curves: dict[float, dict[TunedPoint, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in choosing or runs:
        curves[run.tokens][run.point].append(run.loss)
    curve = max(curves.values(), key=len)
    means = {point: fmean(curve[point]) for point in sorted(curve)}
    final = [run for run in runs if (not run.tuning if run.final is None else run.final)]
    counts = {point: sum(run.point == point for run in final) for point in points}
    chosen = min(points, key=lambda point: (-counts[point], means.get(point, math.inf)))
    if not choosing and runs[0].drawn is None:
        others = tuple(run for run in runs if run.point != chosen)
        return replace(_untuned([run for run in runs if run.point == chosen], [chosen]), dropped=others)
    at_chosen, none_ended = _of_comparison([run for run in runs if run.point == chosen])
    fresh = [run for run in at_chosen if run not in choosing]
    kept = {run.tokens for run in fresh}
    compared = [run for run in at_chosen if run in fresh or run.tokens not in kept]
    drawn = runs[0].drawn
    tried, second_tried = _searches(means, chosen, joint=drawn is not None)
    rate, second = chosen
    assert rate is not None  # `check_runs` refuses sizes where only some runs have a rate
    problem = _problem("rate", rate, tried)
    if second is not None:
        problem = problem or _problem("second key", second, second_tried)
        if not fresh and len({other for _, other in points}) > 1:
            problem = problem or "two keys were tuned, and no run of a comparison is there"
    return TunedSize(
        compared=tuple(compared),
        rate=rate,
        tried=tried,
        seeds=min(map(len, curve.values())),
        problem=problem or none_ended,
        reused=not none_ended and len(compared) > len(fresh),
        dropped=tuple(run for run in runs if run.point != chosen and run not in choosing),
        second_key=second,
        second_tried=second_tried,
        losses=tuple(means.values()),
        drawn=drawn,
        stopped=any(run.stopped for run in runs),
    )


def _untuned(runs: Sequence[FinishedRun], points: Sequence[TunedPoint]) -> TunedSize:
    """The runs at one size, all of which have one rate or none."""
    rate, second = points[0] if points else (None, None)
    loss = fmean(run.loss for run in runs)
    compared, problem = _of_comparison(runs)
    return TunedSize(
        compared=tuple(compared),
        rate=rate,
        tried={} if rate is None else {rate: loss},
        problem=problem,
        second_key=second,
        losses=(loss,),
        drawn=runs[0].drawn,
    )


def _choosing(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs of the tuning: those marked so, or else those of a seed and budget with several points."""
    points: dict[tuple[float, int], set[TunedPoint]] = defaultdict(set)
    for run in runs:
        points[run.tokens, run.seed].add(run.point)
    return [
        run for run in runs if (len(points[run.tokens, run.seed]) > 1 if run.tuning is None else run.tuning)
    ]


def _of_comparison(runs: Sequence[FinishedRun]) -> tuple[Sequence[FinishedRun], str]:
    """Those of the runs at one point that are of the comparison, or all with the problem that none is."""
    ended = [run for run in runs if run.final is not False]
    return (ended, "") if ended else (runs, "no run of the comparison has ended")


def _searches(
    means: Mapping[TunedPoint, float], chosen: TunedPoint, joint: bool
) -> tuple[dict[float, float], dict[float, float]]:
    """The mean losses over the rate and over the second key, each with the other one fixed.

    The second key is fixed at its value in the comparison, the rate at the one with the most values of the
    second key. Where the rate was not tuned at this value of the second key, the one with the most rates is
    taken.

    Args:
        means: the mean loss of every point.
        chosen: the point of the comparison.
        joint: whether both were drawn together, so that neither is fixed.
    """
    rates: dict[float | None, dict[float, float]] = defaultdict(dict)
    seconds: dict[float | None, dict[float, float]] = defaultdict(dict)
    for (rate, second), loss in means.items():
        assert rate is not None  # as above
        rates[None if joint else second][rate] = loss
        if second is not None:
            seconds[None if joint else rate][second] = loss
    if joint:
        return rates[None], dict(sorted(seconds[None].items()))
    pivot = max(seconds, key=lambda rate: (len(seconds[rate]), rate == chosen[0]), default=None)
    at_rate = chosen[1] if len(rates[chosen[1]]) > 1 else max(rates, key=lambda other: len(rates[other]))
    of_rate, of_second = _in_equal_steps(rates[at_rate], pivot), _in_equal_steps(seconds[pivot], at_rate)
    return of_rate, of_second if len(of_second) > 1 else {}


def _in_equal_steps(tried: dict[float, float], met: float | None) -> dict[float, float]:
    """A search over one key without the value at which the search over the other key meets it.

    That value lies between those of the search, unless it is one of them. The search is recognised by its
    equal steps.
    """
    others = {value: loss for value, loss in tried.items() if value != met}
    in_steps = equal_steps(tuple(tried)) is None and equal_steps(tuple(others)) is not None
    return others if in_steps and len(others) >= FEWEST_OF_SEARCH else tried


def _problem(what: str, chosen: float, tried: Mapping[float, float]) -> str:
    if not tried:
        return ""
    lowest, highest = min(tried), max(tried)
    tested = f"{lowest:g} to {highest:g}"
    if len(tried) > 1 and not math.isfinite(min(tried.values())):
        return f"no {what} that was tried, {tested}, has a finite mean loss"
    if len(tried) > 1 and at_border(tried):
        best = best_tried(tried)
        return f"the best {what}, {best:g}, lies at the border of {tested}"
    if not lowest <= chosen <= highest:
        return f"the {what} of the comparison, {chosen:g}, lies outside the {what}s tried, {tested}"
    return ""
