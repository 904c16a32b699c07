"""Caveats of the choice of rates over the sizes: random search, and a line that later sizes have moved."""

from __future__ import annotations

import math
from collections.abc import Iterator

from zoo.ablate.scale.measure import VariantMeasurement
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.tuned import TunedSize
from zoo.ablate.scale.tuning import ln_vertex, rate_line

MOVED = 0.2
"""Difference of ln rate from the line over all tuned sizes above which it is reported (our choice)."""


def random_rates(measurement: VariantMeasurement) -> Iterator[str]:
    """Say what the best of random points means for the error of tuning."""
    names = [
        name
        for k, name in enumerate(("the baseline", measurement.name))
        if any(pair.sides[k].drawn is not None and pair.sides[k].tuned for pair in measurement.pairs.values())
    ]
    if not names:
        return
    here = "how large it is here is not known"
    if measurement.gap is not None:
        here = f"simulated on the parabolas of this table it is {measurement.gap:.2g}"
    yield (
        f"{' and '.join(names)}: the best of random points was taken, not the vertex of a parabola, which "
        "leaves more error of tuning (between two equal sides a standard deviation of .04 in ln tokens for "
        f"the best of five rates a factor 3 apart, .015 for a parabola); {here}"
    )


def moved_rates(measurement: VariantMeasurement) -> Iterator[str]:
    """Name sizes that were compared at another rate than the line over all tuned sizes now gives.

    A ladder compares a size at the line through the sizes tuned so far, before larger ones are tuned.
    """
    for k, name in enumerate(("the baseline", measurement.name)):
        best, compared = {}, {}
        for params, pair in measurement.pairs.items():
            side = pair.sides[k]
            ln_best = _ln_best(side)
            if ln_best is not None and side.rate is not None:
                best[math.log(params)], compared[params] = ln_best, side.rate
        line = rate_line(best)
        if line is None:
            continue
        on_line = {params: line[0] * math.log(params) + line[1] for params in compared}
        moved = [
            f"{format_count(params)} at {rate:.3g} instead of {math.exp(on_line[params]):.3g}"
            for params, rate in compared.items()
            if abs(on_line[params] - math.log(rate)) > MOVED
        ]
        if moved:
            yield (
                f"{name}: compared at another rate than that of the line over all {len(best)} tuned sizes: "
                f"{', '.join(moved)}; a size is compared before larger ones are tuned"
            )


def _ln_best(side: TunedSize) -> float | None:
    """ln of the best rate, if the comparison is trained between the rates that were tried."""
    if side.drawn is not None or len(side.tried) < 3 or not side.interpolated:
        return None
    try:
        return ln_vertex(side.tried)
    except ValueError:
        return None
