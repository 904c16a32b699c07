"""Huber's estimate beside the mean: the measurements of a variant whose outlying runs have less weight.

The verdict uses the mean of all runs, because a method that spikes is worse. If Huber's estimate leads to
another word, single runs decide, and the page says so.

Outlying losses are moved towards the curve (`huberised`), which makes their deviation too small. The sandwich
variance of an M-estimate corrects this: deviations and standard errors are divided by the share of the runs
that were not moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zoo.ablate.scale.line import Line
from zoo.ablate.scale.measure import SizePair, VariantMeasurement, gap_of_tuning, run_deviation
from zoo.ablate.scale.speedup import SizeSpeedup, huberised, size_speedup

STEPS = 3
"""Number of fits, each of which moves the outlying runs towards the curve of the fit before."""


@dataclass(frozen=True)
class Moved:
    """One size with its outlying runs moved.

    Attributes:
        size: the speed-up at this size, fitted to the moved losses.
        pair: the runs of both sides, with moved losses.
        stay: the share of the runs that were not moved.
    """

    size: SizeSpeedup
    pair: SizePair
    stay: float


def with_less_weight_on_outliers(measurement: VariantMeasurement) -> VariantMeasurement | None:
    """The measurements by Huber's estimate, without costs.

    Returns:
        The measurements; None if there is no usable size, or if the moved losses of a size tell no factor:
        they do not fall with more tokens, or those of a side overlap too little with those of the other.
    """
    if not measurement.usable:
        return None
    try:
        fitted = [_moved(size, measurement.pairs[size.params]) for size in measurement.usable]
    except ValueError:
        return None
    sizes = [each.size for each in fitted]
    if not all(size.comparable for size in sizes):
        return None
    pairs = {each.size.params: each.pair for each in fitted}
    found = replace(measurement, pairs=pairs, sizes=sizes, costs=[])
    if measurement.line is not None:
        return replace(found, line=Line(sizes))
    deviation = run_deviation(found)
    found.tau = None if deviation is None else deviation / fitted[-1].stay
    return replace(found, gap=gap_of_tuning(fitted[-1].pair, sizes[-1], found.tau))


def _moved(size: SizeSpeedup, pair: SizePair) -> Moved:
    """Fit one size again, with outlying runs moved towards the curve.

    Raises:
        ValueError: The moved losses do not fall with more tokens.
    """
    losses = list(pair.cells)
    for _ in range(STEPS):
        losses = huberised(size, pair.cells)
        size = size_speedup(size.params, *losses)
    before, after = ([loss for side in sides for loss in side.values()] for sides in (pair.cells, losses))
    # The deviation is the median distance from the curve, so that at least half of the runs stay.
    stay = sum(abs(b / a - 1) < 1e-12 for a, b in zip(before, after, strict=True)) / len(before)
    sides = [
        replace(side, compared=tuple(replace(run, loss=of[run.tokens, run.seed]) for run in side.compared))
        for side, of in zip(pair.sides, losses, strict=True)
    ]
    return Moved(
        replace(size, se=None if size.se is None else size.se / stay),
        replace(pair, baseline=sides[0], variant=sides[1]),
        stay,
    )
