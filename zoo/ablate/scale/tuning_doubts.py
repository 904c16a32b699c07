"""Caveats of a verdict across scale about how the rates of the two sides were tuned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from zoo.ablate.scale.measure import SizePair, VariantMeasurement
from zoo.ablate.scale.runs import AGAIN, format_counts
from zoo.ablate.scale.tuned import TunedSize
from zoo.ablate.scale.tuning import best_tried, equal_steps, near_border

SAME_STEP = 0.05
"""Difference of the logarithms of two factors between neighbouring rates below which they count as equal."""


def tuning_doubts(measurement: VariantMeasurement) -> Iterator[str]:
    """Yield a sentence for each reason for doubt about the tuning, without its full stop."""
    names = ("the baseline", measurement.name)
    sides = [[pair.sides[k] for pair in measurement.pairs.values()] for k in (0, 1)]
    without = [n for n, side in zip(names, sides, strict=True) if any(size.rate is None for size in side)]
    shared = _shares_rates(measurement)
    if without:
        of = "" if len(without) == 2 else f" of {without[0]}"
        yield f"the table has no learning rates{of}, so that nothing is known of the tuning"
    yield from _unequal_numbers(measurement, names)
    yield from _other_rules(measurement, names)
    if shared and not without:
        yield (
            "both halves have the rates of the baseline, so that the error of the tuning is no "
            "part of this comparison"
        )
    for name, side in zip(names, sides, strict=True):
        if not shared:
            yield from _untuned_rates(measurement, name, side)
        yield from _worse_rates(measurement, name, side)
        if any(size.reused for size in side):
            yield (
                f"{name}: runs that chose the rate count in the comparison as well, where their losses are "
                "too low"
            )


def _unequal_numbers(measurement: VariantMeasurement, names: Sequence[str]) -> Iterator[str]:
    """Name sizes at which one side was tuned with more runs, unless the rule of both demands them."""
    unequal = [
        n
        for n, pair in measurement.pairs.items()
        if pair.baseline.tuning_runs != pair.variant.tuning_runs
        and not (_has_same_rule(pair) and equal_steps(tuple(pair.baseline.tried)) and _is_extended(pair))
    ]
    if unequal:
        counts = " and ".join(
            f"{sum(measurement.pairs[n].sides[k].tuning_runs for n in unequal)} of {name}"
            for k, name in enumerate(names)
        )
        yield (
            f"the sides were tuned unequally, at {format_counts(unequal)}: {counts} tuning runs; more trials "
            "find more"
        )


def _other_rules(measurement: VariantMeasurement, names: Sequence[str]) -> Iterator[str]:
    """Name sizes at which both sides are tuned, with different numbers of seeds or steps between rates."""
    tuned = {n: pair for n, pair in measurement.pairs.items() if all(side.tuned for side in pair.sides)}
    other = {n: pair for n, pair in tuned.items() if not _has_same_rule(pair)}
    if other:
        first = next(iter(other.values()))
        rules = [
            f"{name} {side.seeds} x {len(side.tried)} runs, {_spacing(equal_steps(tuple(side.tried)))}"
            for name, side in zip(names, first.sides, strict=True)
        ]
        yield f"the sides were tuned by different rules, at {format_counts(other)}: {'; '.join(rules)}"


def _untuned_rates(measurement: VariantMeasurement, name: str, side: Sequence[TunedSize]) -> Iterator[str]:
    """Name the sizes of a side whose rate was not chosen by a tuning at this size."""
    untuned = [n for n, size in zip(measurement.pairs, side, strict=True) if size.rate and not size.tuned]
    if untuned:
        some_are_tuned = any(size.tuned for size in side)
        how = "transferred, not bracketed" if some_are_tuned else "not tuned in this table"
        yield f"{name}: the rate is {how}, at {format_counts(untuned)}"


def _worse_rates(measurement: VariantMeasurement, name: str, side: Sequence[TunedSize]) -> Iterator[str]:
    """Name the sizes of a side that are compared at a rate other than the best one of the tuning."""
    worse = {
        n: f"{size.rate:.4g} instead of {best_tried(size.tried):.4g}"
        for n, size in zip(measurement.pairs, side, strict=True)
        if _is_worse(size)
    }
    if worse:
        yield (
            f"{name}: another rate than that of the comparison had the lowest loss in the tuning, at "
            f"{format_counts(worse)}: {', '.join(dict.fromkeys(worse.values()))}"
        )


def _is_worse(side: TunedSize) -> bool:
    """Whether the rate of the comparison was tried, and another one had a lower mean loss."""
    if side.rate is None or side.interpolated or side.second_key is not None:
        return False
    return side.tried[side.rate] > min(side.tried.values())


def _shares_rates(measurement: VariantMeasurement) -> bool:
    """Whether a comparison of the baseline with itself takes the rates of the baseline for both halves."""
    return measurement.name.endswith(AGAIN) and not any(
        pair.baseline.tuned or pair.baseline.rate != pair.variant.rate for pair in measurement.pairs.values()
    )


def _has_same_rule(pair: SizePair) -> bool:
    """Whether both sides were tuned with equally many seeds and equal steps between rates."""
    return (
        pair.baseline.seeds == pair.variant.seeds
        and _is_same_step(*(equal_steps(tuple(side.tried)) for side in pair.sides))
        and _is_same_step(*(equal_steps(tuple(side.second_tried)) for side in pair.sides))
    )


def _is_extended(pair: SizePair) -> bool:
    """Whether the side with more rates may only have been extended at a border, as the rule demands."""
    return near_border(max(pair.sides, key=lambda side: len(side.tried)).tried)


def _is_same_step(one: float | None, other: float | None) -> bool:
    """Whether two grids are equally fine; two without equal steps (random searches) count as equal."""
    if one is None or other is None:
        return one is other
    return abs(math.log(one / other)) < SAME_STEP


def _spacing(step: float | None) -> str:
    """The distance between neighbouring rates in words."""
    return "rates in unequal steps" if step is None else f"rates a factor {step:.2g} apart"
