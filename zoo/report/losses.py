"""Loss curves: their mean over seeds, the difference from the baseline, and every run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zoo.ablate.curve import COSTS, Curve, Numbers
from zoo.ablate.measured import Measured
from zoo.ablate.results import Results
from zoo.report.plot import Plot, Series, View

AXES = {
    "steps": "optimizer steps",
    "tokens": "training targets (tokens or images)",
    "flops": "training FLOPs",
    "seconds": "seconds of training steps",
}

NATS = "nats per target"

POINTS = 200
"""Of a training loss; more are averaged."""


def losses(results: Results) -> Iterator[Plot]:
    """The plots that there is something for."""
    curves = {
        variant.name: results.finished(variant.name) or dict(_open(results, variant.name))
        for variant in results.manifest.variants
    }
    curves = {variant: runs for variant, runs in curves.items() if runs}
    if curves:
        yield Plot(
            "loss",
            "Validation loss",
            [
                View(cost, AXES[cost], NATS, [_mean(v, runs, cost) for v, runs in curves.items()])
                for cost in COSTS
            ],
            "Line: mean over seeds that have finished, or over all where none has; band: lowest and highest "
            "seed. The loss before the first step is left out.",
        )
        base = results.manifest.baseline
        differences = [_difference(v, runs, curves[base]) for v, runs in curves.items() if base in curves]
        found = [series for series in differences if series and series.variant != base]
        if found:
            yield Plot(
                "difference",
                f"Validation loss less that of {base}",
                [View("steps", AXES["steps"], NATS, found)],
                f"Below 0: better than {base} at the same step. Line: mean of the differences of the same "
                "seed; band: lowest and highest of them.",
                zero_line=True,
            )
    yield from _every_run(results)


def _open(results: Results, variant: str) -> Iterator[tuple[int, Measured]]:
    """By seed the runs that have a validation loss."""
    return ((run.seed, found) for run, found in results.begun(variant) if len(found.validation))


def _mean(variant: str, runs: dict[int, Measured], cost: str) -> Series:
    """Mean and spread over seeds, at the steps that all of them have."""
    shared = _shared([run.validation for run in runs.values()])
    shared = shared[shared > 0] if len(shared) > 2 else shared
    x = np.mean([_at(run.validation, shared, cost) for run in runs.values()], axis=0)
    y = np.array([_at(run.validation, shared, "loss") for run in runs.values()])
    return _spread(variant, x, y)


def _difference(variant: str, runs: dict[int, Measured], theirs: dict[int, Measured]) -> Series | None:
    """Mean and spread of the differences of the same seed and step."""
    pairs = [(runs[seed].validation, theirs[seed].validation) for seed in runs.keys() & theirs.keys()]
    if not pairs:
        return None
    shared = _shared([curve for pair in pairs for curve in pair])
    shared = shared[shared > 0]
    return _spread(
        variant, shared, np.array([_at(a, shared, "loss") - _at(b, shared, "loss") for a, b in pairs])
    )


def _spread(variant: str, x: Numbers, y: Numbers) -> Series:
    """Of y, which has a row per seed."""
    ends = (y.min(axis=0), y.max(axis=0)) if len(y) > 1 else (np.array([]), np.array([]))
    low, high = (list(end) for end in ends)
    return Series(variant, variant, list(x), list(y.mean(axis=0)), low, high)


def _shared(curves: Sequence[Curve]) -> Numbers:
    """The steps at which all curves have a point, in order."""
    steps = set.intersection(*(set(curve.steps.tolist()) for curve in curves))
    return np.array(sorted(steps), dtype=np.float64)


def _at(curve: Curve, steps: Numbers, what: str) -> Numbers:
    """A cost or the loss at steps that the curve has."""
    values: Numbers = getattr(curve, what)[np.searchsorted(curve.steps, steps)]
    return values


def _every_run(results: Results) -> Iterator[Plot]:
    """One line per run of the comparison, each with a place of its own in the legend."""
    runs = [(v.name, found) for v in results.manifest.variants for _, found in results.begun(v.name)]
    views = []
    for name in ("training", "validation"):
        curves = [(variant, run.config.name, getattr(run, name)) for variant, run in runs]
        series = [
            Series(title, variant, *_thinned(curve), single_run=True)
            for variant, title, curve in curves
            if len(curve) > 1
        ]
        if series:
            views.append(View(name, AXES["steps"], NATS, series))
    if views:
        note = f"Training loss: of batches before the step on them; averaged to at most {POINTS} points."
        yield Plot("runs", "Every run", views, note)


def _thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """Steps and losses as means over equal stretches; without the loss before the first step."""
    first = int(curve.steps[0] == 0 and len(curve) > 2)
    parts = min(POINTS, len(curve) - first)
    means = [
        [float(part.mean()) for part in np.array_split(column[first:], parts)]
        for column in (curve.steps, curve.loss)
    ]
    return means[0], means[1]
