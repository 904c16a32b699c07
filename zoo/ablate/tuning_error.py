"""The effect of tuning alone on the difference of two variants at one size.

The error of tuning is shared by all seeds, so that no test over seeds detects it. It is simulated by the rule
of the sweep on the parabola through each side's losses, with the noise of the seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from zoo.ablate.results import Results
from zoo.ablate.scale.looks import saturation
from zoo.ablate.scale.tuning import at_border, fitted, random_gap, tuning_gap, vertex
from zoo.ablate.statistics import Comparison


@dataclass(frozen=True)
class TuningError:
    """The error of a variant's tuning over a single numeric key.

    Attributes:
        step: the largest factor between neighbouring values that were tried.
        interpolated: whether the chosen value lies between two that were tried.
        sd: standard deviation of the difference between two sides tuned like this one, in nats or in the unit
            of the measure; None if there is no parabola or fewer than two seeds, or if the points of a random
            search were not drawn log-uniformly.
    """

    step: float
    interpolated: bool
    sd: float | None


def tuning_error(results: Results, variant: str) -> TuningError | None:
    """The error of a variant's tuning; None unless a single numeric key was tuned."""
    tune = results.manifest.tune
    chosen = next((v.tuned for v in results.manifest.variants if v.name == variant), None)
    if tune is None or len(tune.keys) != 1 or not chosen:
        return None
    (key,) = tune.keys
    losses: dict[float, list[float]] = defaultdict(list)
    for run in results.runs(variant, "tune"):
        if run.crashed:
            continue
        value, metrics = run.tuned.get(key), results.metrics.get(run.id)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            return None
        final = metrics.final(results.measure) if metrics is not None and run.status == "finished" else None
        losses[float(value)].append(math.inf if final is None else results.measure.cost(final))
    if len(losses) < 2:
        return None
    means = {rate: fmean(values) for rate, values in sorted(losses.items())}
    rates = list(means)
    step = max(b / a for a, b in pairwise(rates))
    interpolated = chosen[key] not in means if tune.vertex is None else tune.vertex
    finals = list(results.finals(variant).values())
    if len(means) < 3 or at_border(means) or len(finals) < 2 or (tune.random and tune.drawn is None):
        return TuningError(step, interpolated, None)
    try:
        parabola = fitted(means) if tune.random else vertex(means)
    except ValueError:
        return TuningError(step, interpolated, None)
    seeds, noise = min(map(len, losses.values())), stdev(finals)
    if tune.drawn is not None:
        sd = random_gap(parabola, tune.drawn, len(rates), sd=noise, seeds=seeds, per_token=1.0)
    else:
        sd = tuning_gap(
            parabola, tuple(rates), sd=noise, seeds=seeds, per_token=1.0, interpolated=interpolated
        )
    return TuningError(step, interpolated, sd)


def gap(results: Results, variant: str) -> float | None:
    """The standard deviation of the difference from the baseline by tuning alone; None if unknown."""
    errors = [tuning_error(results, name) for name in (results.baseline, variant)]
    known = [error.sd for error in errors if error is not None and error.sd is not None]
    return math.sqrt(sum(sd**2 for sd in known) / 2) if len(known) == 2 else None


def enough_seeds(comparison: Comparison, sd: float) -> int | None:
    """The number of seeds from which others only sharpen the error of tuning; None if it is not reached.

    Args:
        comparison: the comparison with the baseline.
        sd: the standard deviation of the difference by tuning alone, see `gap`.
    """
    seeds = comparison.n if comparison.test.startswith("paired") else comparison.n / 2
    enough = saturation(comparison.error * math.sqrt(seeds), sd)
    return max(2, math.ceil(enough)) if comparison.error and seeds >= enough else None
