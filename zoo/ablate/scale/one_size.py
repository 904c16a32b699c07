"""The claim at one size, the looks at it while seeds are added, and the end at which seeds are futile.

The error of tuning is shared by all seeds. From (sd of a pair / sd of tuning)^2 seeds on, it is the larger
part of the error, and further seeds only sharpen it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from zoo.ablate import student_t
from zoo.ablate.scale.looks import (
    MOST_LOOKS,
    Looks,
    adjusted_p,
    anytime_p,
    anytime_p_so_far,
    anytime_value,
    saturation,
)
from zoo.ablate.scale.measure import CurrencySpeedup, VariantMeasurement
from zoo.ablate.scale.speedup import Cells, SizeSpeedup, size_speedup
from zoo.ablate.scale.tuning import GAPS
from zoo.utils.errors import DataError

FUTILE = "; none is added for its sake, a stop for futility, which leaves the error of claims as it is"


def critical_value(measurement: VariantMeasurement, alpha: float, looks: Looks) -> float | None:
    """The critical value of |t| at one size after the present seeds; None without a declaration.

    Raises:
        DataError: A side has more seeds than were declared.
    """
    if not measurement.usable or not (looks.anytime or looks.max_seeds):
        return None
    size = measurement.usable[-1]
    sides = measurement.pairs[size.params].sides
    most = max(len({run.seed for run in side.compared}) for side in sides)
    if looks.max_seeds is not None and most > looks.max_seeds:
        raise DataError(
            f"{measurement.name}: {most} seeds of a side; the declared maximum is {looks.max_seeds}, and the "
            "error is spent: expected no look beyond it"
        )
    return looks.critical_value(size.seeds, alpha)


def p_value(measurement: VariantMeasurement, alpha: float, looks: Looks) -> float | None:
    """The p-value of the claim at the largest size; None if there is no claim.

    It is 1 within `GAPS` standard deviations of tuning. If seeds are added, it takes the earlier looks into
    account.
    """
    size = measurement.usable[-1]
    p = size.p_value
    if p is None or measurement.se_alone is None:
        return None
    if looks.max_seeds is not None:
        if measurement.critical is None or measurement.critical == math.inf:  # too early for a look
            return None
        p = adjusted_p(p, measurement.critical, size.seeds - 1, alpha)
    elif looks.anytime:
        p, _ = anytime_p_so_far(_ts(measurement))
    return 1.0 if is_within_tuning(size.ln_c, measurement) else p


def p_of_seconds(seconds: CurrencySpeedup, measurement: VariantMeasurement, looks: Looks) -> float:
    """The p-value of a claim on seconds, which have the looks and the error of tuning of the tokens.

    Without a maximum of seeds it is 1 / e at the present look, so that it holds at any share of the error.
    The noise of the speeds widens the standard error as it widens the interval.
    """
    if is_within_tuning(seconds.ln_c, measurement):
        return 1.0
    if not looks.anytime or measurement.line is not None or measurement.critical is None:
        return seconds.p_value
    t = measurement.critical * abs(seconds.ln_c) / seconds.half95
    return anytime_p(t, measurement.usable[-1].seeds)


def is_within_tuning(ln_c: float, measurement: VariantMeasurement) -> bool:
    """Whether tuning alone makes such a difference at one size; on a line it is in the sizes' scatter."""
    return measurement.gap is not None and abs(ln_c) <= GAPS * measurement.gap


def quantile_of_claims(measurement: VariantMeasurement, looks: Looks, alpha: float, share: float) -> float:
    """The value that |t| must exceed for a variant's first claim; infinite if none is enough.

    Args:
        measurement: the variant.
        looks: the declarations.
        alpha: the probability of any false claim.
        share: the level of the first claim.
    """
    seeds = measurement.usable[-1].seeds
    if looks.anytime:
        return anytime_value(seeds, share)
    of_look = alpha if looks.max_seeds is None else looks.error_of_look(seeds, alpha)
    return student_t.critical_value(of_look * share / alpha, seeds - 1)


def too_early(measurement: VariantMeasurement, alpha: float, looks: Looks) -> str:
    """The reason for which a study in which seeds are added has no word yet; empty if it may have one."""
    return looks.too_early(measurement.usable[-1].seeds, alpha) if measurement.critical == math.inf else ""


def notes(
    measurement: VariantMeasurement, looks: Looks, share: float, variants: int, *, held: bool, futile: bool
) -> Iterator[str]:
    """Sentences, without full stops, on claims that are out of reach or differ from the interval.

    Args:
        measurement: the variant, which has no line.
        looks: the declarations.
        share: the level of the first claim on each variant.
        variants: number of variants that share the error.
        held: whether the variant is called faster or slower.
        futile: whether the variant is left undecided before its seeds reach their maximum, see `is_futile`.
    """
    size, half = measurement.usable[-1], measurement.half_alone()
    if looks.anytime and half is not None and anytime_value(size.seeds, share) == math.inf:
        numbers = range(size.seeds, MOST_LOOKS + 1)
        first = next((n for n in numbers if anytime_value(n, share) < math.inf), None)
        until = f"with up to {MOST_LOOKS}" if first is None else f"before {first} seeds"
        yield (
            f"{size.seeds} seeds: no data reach the level {share:.3g}, the share of each of {variants} "
            f"variants, {until}: no claim is possible yet"
        )
    if held and half is not None and half >= abs(size.ln_c):
        yield from _why_the_interval_contains_1(measurement, looks, share)
    if (enough := _saturation(measurement)) is not None and size.seeds >= enough:
        yield (
            f"{size.seeds} seeds: from {max(2, math.ceil(enough))} on, (standard deviation of a pair / that "
            "of the gap of tuning)², further seeds only sharpen the error of tuning, which all seeds share"
            + FUTILE
            * futile
        )


def is_futile(measurement: VariantMeasurement, margin: float | None, alpha: float, looks: Looks) -> bool:
    """Whether an undecided variant is left as it is although its seeds have not reached their maximum.

    The seeds have reached (sd of a pair / sd of tuning)^2, and neither word is in sight: the difference is
    within `GAPS` standard deviations of tuning, and even at the maximum, without any noise of the seeds, the
    interval would not lie within the margin. The second part is our choice: early looks have large critical
    values, so that more seeds may decide although they hardly narrow the error. To stop makes no claim, and
    therefore does not change the error of claims.

    Args:
        measurement: the variant, which has no line.
        margin: ln of the factor within which both sides count as equal.
        alpha: the probability of a false alarm over all looks.
        looks: the declarations.
    """
    enough, gap = _saturation(measurement), measurement.gap
    if enough is None or gap is None or looks.max_seeds is None:
        return False
    size = measurement.usable[-1]
    at_the_end = abs(size.ln_c) + looks.critical_value(looks.max_seeds, alpha) * gap
    never_equal = margin is None or at_the_end > margin
    return size.seeds >= enough and is_within_tuning(size.ln_c, measurement) and never_equal


def _saturation(measurement: VariantMeasurement) -> float | None:
    """The number of seeds of `saturation`; None if an error is not known."""
    size = measurement.usable[-1]
    if not size.se or measurement.gap is None:
        return None
    return saturation(size.se * math.sqrt(size.seeds), measurement.gap)


def _why_the_interval_contains_1(
    measurement: VariantMeasurement, looks: Looks, share: float
) -> Iterator[str]:
    """The reason in a sentence; none where it is that claims and intervals have different levels."""
    size = measurement.usable[-1]
    if looks.anytime and size.se and anytime_p(size.ln_c / size.se, size.seeds) > share:
        _, seeds = anytime_p_so_far(_ts(measurement))
        yield (
            f"the word was shown after {seeds} seeds, where e was largest, and stays; the interval is that "
            f"of the present {size.seeds} seeds, and contains 1"
        )
    elif measurement.gap is not None:
        yield (
            "the interval contains 1 because it includes the error of tuning; the word asks for the critical "
            f"value of the seeds alone and for more than {GAPS:g} standard deviations of tuning"
        )


def _ts(measurement: VariantMeasurement) -> dict[int, float]:
    """Student's t at the largest size by the number of seeds, which are taken in ascending order."""
    present = measurement.usable[-1]
    sides = measurement.pairs[present.params].cells
    seeds = [sorted({seed for _, seed in side}) for side in sides]
    earlier = (
        _with_first(present.params, sides, [of_side[:n] for of_side in seeds])
        for n in range(2, max(map(len, seeds)))
    )
    return {size.seeds: size.ln_c / size.se for size in (*earlier, present) if size is not None and size.se}


def _with_first(params: float, sides: tuple[Cells, Cells], seeds: list[list[int]]) -> SizeSpeedup | None:
    """The speed-up with some seeds of each side; None if they show none."""
    kept = [
        {key: loss for key, loss in side.items() if key[1] in of_side}
        for side, of_side in zip(sides, seeds, strict=True)
    ]
    try:
        size = size_speedup(params, *kept)
    except ValueError:
        return None
    return size if size.comparable else None
