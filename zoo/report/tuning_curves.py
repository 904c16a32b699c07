"""Plots of tuning curves of random searches: the result of the best of k trials, with exact bands."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from zoo.ablate.results import Results
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.tuned import TunedSize
from zoo.ablate.tuning_curve import FEWEST_TRIALS, TuningCurve, tuning_curve
from zoo.report.plot import Plot, Series, View

MOST_TICKS = 12
"""Largest number of trials with a tick each; with more, the drawing library chooses the ticks."""
BAND = (
    "Line: the median over random searches of k trials, estimated from all trials. Band: exact, for all k "
    "together, with probability 0.95 (arXiv 2311.09480); it ends where it has no second end, at about a "
    "ninth of the trials. It is about the results of the tuning, whose seeds are those of tune.seeds."
)
TRIALS = "k, trials of the random search"


def tuning_curve_plots(results: Results) -> Iterator[Plot]:
    """Yield one plot, if a random search with enough trials has ended for a variant."""
    tune, measure = results.manifest.tune, results.measure
    curves = {v: curve for v in results.variants if (curve := _curve(results, v)) is not None}
    if tune is None or not tune.random or not curves:
        return
    series = [_series(variant, curve, results) for variant, curve in curves.items()]
    yield Plot(
        "tuning-curve",
        f"Median {measure.title} of the best of k random trials",
        [View("trials", TRIALS, measure.unit or measure.title, series, ticks=_ticks(series))],
        BAND,
    )


def ladder_tuning_curves(sides: Mapping[str, Mapping[float, TunedSize]], unit: str) -> Iterator[Plot]:
    """Yield one plot with a view per size, if random searches of a ladder have enough trials.

    There is none of a search with halving, in which not every trial has a result.

    Args:
        sides: the tuning of every side by size.
        unit: the loss with its unit.
    """
    views = []
    for params in sorted({params for of_side in sides.values() for params in of_side}):
        series = []
        for name, of_side in sides.items():
            side = of_side.get(params)
            if side is None or side.drawn is None or side.stopped or len(side.losses) < FEWEST_TRIALS:
                continue
            curve = tuning_curve(side.losses)
            if curve is not None:
                series.append(Series(name, name, list(curve.trials), curve.median, curve.low, curve.high))
        if series:
            views.append(View(format_count(params), TRIALS, unit, series, ticks=_ticks(series)))
    if views:
        yield Plot("tuning-curves", "Median loss of the best of k random trials", views, BAND, panels=True)


def _ticks(series: Sequence[Series]) -> Sequence[float]:
    trials = sorted({trial for s in series for trial in s.x})
    return trials if len(trials) <= MOST_TICKS else ()


def _curve(results: Results, variant: str) -> TuningCurve | None:
    """The tuning curve of a variant; None unless every one of enough trials has a result."""
    losses: dict[str, list[float]] = defaultdict(list)
    for run in results.runs(variant, "tune"):
        metrics = results.metrics.get(run.id)
        final = metrics.final(results.measure) if metrics is not None and run.status == "finished" else None
        if final is None and (run.status != "failed" or run.crashed):
            return None
        losses[repr(sorted(run.tuned.items()))].append(
            math.inf if final is None else results.measure.cost(final)
        )
    return (
        tuning_curve([fmean(values) for values in losses.values()]) if len(losses) >= FEWEST_TRIALS else None
    )


def _series(variant: str, curve: TuningCurve, results: Results) -> Series:
    cost = results.measure.cost
    middle, low, high = ([cost(v) for v in values] for values in (curve.median, curve.low, curve.high))
    ends = (low, high) if results.measure.lower_is_better else (high, low)
    return Series(variant, variant, list(curve.trials), middle, *ends)
