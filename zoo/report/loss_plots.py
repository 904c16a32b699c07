"""Validation curves: their mean over seeds, the difference from the baseline, and every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zoo.ablate.curve import COSTS, READ, Curve
from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics
from zoo.report.plot import Plot, Series, View
from zoo.utils.arrays import Array
from zoo.utils.measures import CROSS_ENTROPY, Measure

COST_TITLES = {
    "steps": "optimizer steps",
    "tokens": READ,
    "flops": "training FLOPs",
    "seconds": "seconds of training steps",
}
"""The titles of horizontal axes."""

NATS = "nats per target"

MAX_POINTS = 200
"""Largest number of points of a training curve; longer ones are averaged."""

Curves = Mapping[int, Curve]
"""The validation curves of a variant by seed."""


def loss_plots(results: Results) -> Iterator[Plot]:
    """Yield the plots for which there are values: of the measure of the comparison, and of the loss."""
    if not results.measure.is_loss:
        yield from _measure_plots(results, results.measure)
    yield from _measure_plots(results, CROSS_ENTROPY)
    yield from _run_plots(results)


def _measure_plots(results: Results, measure: Measure) -> Iterator[Plot]:
    """The curves of a measure, and their difference from the baseline's."""
    curves: dict[str, Curves] = {
        variant: _curves(results.finished(variant), measure) or _curves(results.started(variant), measure)
        for variant in results.variants
    }
    curves = {variant: by_seed for variant, by_seed in curves.items() if by_seed}
    unit, prefix = measure.unit or measure.title, "" if measure.is_loss else "measure-"
    key = prefix.removesuffix("-") or "loss"
    if curves:
        views = [
            View(cost, COST_TITLES[cost], unit, [_mean(v, by_seed, cost) for v, by_seed in curves.items()])
            for cost in COSTS
        ]
        note = (
            "Line: mean over seeds that have finished, or over all where none has; band: lowest and highest "
            "seed."
        )
        if all(0 not in _drawn_steps(by_seed) for by_seed in curves.values()):
            note += f" The {measure.title} before the first step is left out."
        yield Plot(key, f"Validation {measure.title}", views, note)
    base = results.baseline
    if base in curves:
        differences = [_difference(v, by_seed, curves[base]) for v, by_seed in curves.items() if v != base]
        if series := [line for line in differences if line]:
            yield Plot(
                f"{prefix}difference",
                f"Validation {measure.title} less that of {base}",
                [View("steps", COST_TITLES["steps"], unit, series)],
                f"{'Below' if measure.lower_is_better else 'Above'} 0: better than {base} at the same step. "
                "Line: mean of the differences of the same seed; band: lowest and highest of them.",
                zero_line=True,
            )


def _curves(runs: Mapping[int, RunMetrics], measure: Measure) -> Curves:
    return {seed: curve for seed, run in runs.items() if len(curve := run.curve(measure))}


def _mean(variant: str, curves: Curves, cost: str) -> Series:
    """Mean and spread over seeds, at the steps that all of them have."""
    steps = _drawn_steps(curves)
    x = np.mean([_at(curve, steps, cost) for curve in curves.values()], axis=0)
    return _spread(variant, x, np.array([_at(curve, steps, "values") for curve in curves.values()]))


def _drawn_steps(curves: Curves) -> Array:
    """The steps that all seeds have, without 0 if at least two others remain, which a line needs."""
    steps = _shared_steps(list(curves.values()))
    return steps[steps > 0] if len(steps) > 2 else steps


def _difference(variant: str, ours: Curves, theirs: Curves) -> Series | None:
    """Mean and spread of the differences of the same seed and step."""
    pairs = [(ours[seed], theirs[seed]) for seed in ours.keys() & theirs.keys()]
    if not pairs:
        return None
    steps = _shared_steps([curve for pair in pairs for curve in pair])
    steps = steps[steps > 0]
    return _spread(
        variant, steps, np.array([_at(a, steps, "values") - _at(b, steps, "values") for a, b in pairs])
    )


def _spread(variant: str, x: Array, y: Array) -> Series:
    """The mean of y, (seeds, points), with a band from its lowest to its highest row."""
    bands = ([*y.min(axis=0)], [*y.max(axis=0)]) if len(y) > 1 else ((), ())
    return Series(variant, variant, list(x), [*y.mean(axis=0)], *bands)


def _shared_steps(curves: Sequence[Curve]) -> Array:
    """The steps at which all curves have a point, in order."""
    steps = set.intersection(*(set(curve.steps.tolist()) for curve in curves))
    return np.array(sorted(steps), dtype=np.float64)


def _at(curve: Curve, steps: Array, quantity: str) -> Array:
    """A cost or the values at steps that the curve has."""
    values: Array = getattr(curve, quantity)[np.searchsorted(curve.steps, steps)]
    return values


def _run_plots(results: Results) -> Iterator[Plot]:
    """Yield plots with a line for every run of the comparison."""
    views = []
    for name in ("training", "validation"):
        curves = [(v, run.config.name, getattr(run, name)) for v, run in results.all_started()]
        series = [
            Series(run, variant, *_averaged(curve), single_run=True)
            for variant, run, curve in curves
            if len(curve) > 1
        ]
        if series:
            views.append(View(name, COST_TITLES["steps"], NATS, series))
    if views:
        note = f"Training loss: of batches before the step on them; averaged to at most {MAX_POINTS} points."
        yield Plot("runs", "Every run", views, note)


def _averaged(curve: Curve) -> tuple[list[float], list[float]]:
    """Steps and losses as means over equal stretches, without the loss before the first step."""
    first = int(curve.steps[0] == 0 and len(curve) > 2)
    parts = min(MAX_POINTS, len(curve) - first)
    steps, losses = (
        [float(part.mean()) for part in np.array_split(column[first:], parts)]
        for column in (curve.steps, curve.values)
    )
    return steps, losses
