"""Plots of tuning curves of a random search: the result of the best of k trials, with exact bands."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from zoo.ablate.results import Results
from zoo.ablate.tuning_curve import FEWEST_TRIALS, TuningCurve, tuning_curve
from zoo.report.plot import Plot, Series, View

MOST_TICKS = 12
"""Largest number of trials with a tick each; with more, the drawing library chooses the ticks."""


def tuning_curve_plots(results: Results) -> Iterator[Plot]:
    """Yield one plot, if a random search with enough trials has ended for a variant."""
    tune, measure = results.manifest.tune, results.measure
    curves = {v: curve for v in results.variants if (curve := _curve(results, v)) is not None}
    if tune is None or not tune.random or not curves:
        return
    series = [_series(variant, curve, results) for variant, curve in curves.items()]
    trials = sorted({trial for s in series for trial in s.x})
    ticks = trials if len(trials) <= MOST_TICKS else ()
    yield Plot(
        "tuning-curve",
        f"Median {measure.title} of the best of k random trials",
        [
            View(
                "trials", "k, trials of the random search", measure.unit or measure.title, series, ticks=ticks
            )
        ],
        "Line: the median over random searches of k trials, estimated from all trials. Band: exact, for all "
        "k together, with probability 0.95 (arXiv 2311.09480); it ends where it has no second end, at about "
        "a ninth of the trials. It is about the results of the tuning, whose seeds are those of tune.seeds.",
    )


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
