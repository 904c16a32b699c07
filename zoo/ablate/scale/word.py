"""The word on every variant: which claims hold, given the error that all variants and all looks share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from zoo.ablate.scale import one_size, size_looks
from zoo.ablate.scale.chain import claims
from zoo.ablate.scale.line import FEWEST_SIZES
from zoo.ablate.scale.looks import FIRST_LOOK, Looks, spent_p
from zoo.ablate.scale.measure import VariantMeasurement
from zoo.ablate.scale.runs import AGAIN
from zoo.ablate.scale.speedup import exp
from zoo.ablate.statistics import format_level

NO_CLAIM_YET = (math.inf,)
"""The p-values of a variant that cannot make a claim at the present look."""

Word = Literal["faster", "slower", "equal", "undecided", "not comparable"]


@dataclass(frozen=True)
class Error:
    """The error that the claims on a variant may have.

    Attributes:
        alpha: the probability of any false claim.
        variants: number of variants that share it.
    """

    alpha: float
    variants: int = 1

    @property
    def share(self) -> float:
        """The level at which the chain of a variant starts."""
        return self.alpha / self.variants

    def note(self, level: float) -> str:
        """How the level of claims differs from that of intervals, without full stop; empty if it does not.

        Args:
            level: the level of the intervals.
        """
        if self.variants == 1:
            if math.isclose(self.alpha, 1 - level):
                return ""
            return (
                f"claims are made at the level {self.alpha:g}, but the intervals are those of "
                f"{format_level(level)}: a word may differ from its interval"
            )
        return (
            f"{self.variants} variants share the error of {self.alpha:g}: the first claim on each is made at "
            f"the level {self.share:.3g}, and every interval is that of one comparison, not simultaneous "
            "with the others"
        )


@dataclass(frozen=True)
class Answer:
    """The word on a variant, and what holds of it.

    Attributes:
        word: the word on the variant, see `zoo.ablate.scale.verdict.ScaleVerdict`.
        measured: the measurements behind the word.
        at_largest: whether "faster" or "slower" is shown at the largest size as well.
        claims: the claims that hold, in their order.
        within_margin: whether the speed-up lies within the margin.
        error: the error that claims on the variant may have.
    """

    word: Word
    measured: VariantMeasurement
    at_largest: bool
    claims: tuple[str, ...]
    within_margin: bool
    error: Error

    @property
    def in_words(self) -> str:
        """The word with the factors that it rests on."""
        largest = self.measured.usable[-1].ln_c
        factors = f"{exp(largest):.2f} x"
        if (line := self.measured.line) is not None:
            factors = (
                f"{exp(line.middle.estimate):.2f} x in the middle, {exp(line.largest.estimate):.2f} x at "
            )
            factors += "the largest size"
        shown = self.word in ("faster", "slower") and line is not None and not self.at_largest
        return f"{self.word}{', not shown at the largest size' * shown} ({factors})"


def word_all(
    measurements: Mapping[str, VariantMeasurement],
    baseline: str,
    margin: float | None,
    alpha: float,
    looks: Looks,
    waiting: Iterable[str] = (),
) -> dict[str, Answer]:
    """The words on all variants, which share the error by the graph.

    A copy of the baseline has an error of its own, see `zoo.ablate.scale.verdict.judge`. In a study with
    several looks a variant that cannot make a claim yet keeps its share, because it may make one later.

    Args:
        measurements: the measurements by variant, with the critical values of this look.
        baseline: the variant that they are compared with.
        margin: the factor within which two sides count as equal; None: nothing is called equal.
        alpha: the probability of any false claim.
        looks: the declarations.
        waiting: names of variants that have no measurement yet and may make a claim later.
    """
    all_claims = {name: _claims(variant, alpha, looks) for name, variant in measurements.items()}
    chains = {
        name: tuple(p for _, p in chain) or NO_CLAIM_YET
        for name, chain in all_claims.items()
        if chain or looks.several
    }
    chains |= dict.fromkeys(waiting, NO_CLAIM_YET)
    check = {name: chains.pop(name) for name in chains.keys() & {baseline + AGAIN}}
    held = claims(chains, alpha) | claims(check, alpha)
    sharing = {name: len(group) for group in (chains, check) for name in group}
    return {
        name: _answer(
            variant,
            tuple(claim for claim, _ in all_claims[name][: held.get(name, 0)]),
            margin,
            Error(alpha, sharing.get(name, 1)),
            looks,
        )
        for name, variant in measurements.items()
    }


def _claims(measurement: VariantMeasurement, alpha: float, looks: Looks) -> list[tuple[str, float]]:
    """The claims of a variant with their p-values, in the order in which they are made."""
    if not measurement.usable:
        return []
    if measurement.line is None:
        if looks.sizes:
            return []  # the error is spent on looks at the line
        p = one_size.p_value(measurement, alpha, looks)
        return [] if p is None else [("largest", p), *_further_claims(measurement, looks)]
    line = measurement.line
    chain = [("middle", line.middle.p_over_looks(alpha)), ("largest", line.largest.p_over_looks(alpha))]
    return chain + _further_claims(measurement, looks)


def _further_claims(measurement: VariantMeasurement, looks: Looks) -> list[tuple[str, float]]:
    """The claims behind those in tokens: items, then seconds."""
    chain = []
    if measurement.items is not None:
        chain.append(("items", _over_looks(measurement.items.p_value, measurement, looks)))
    seconds = next((cost for cost in measurement.costs if cost.name == "seconds"), None)
    if seconds is not None:
        chain.append(("seconds", one_size.p_of_seconds(seconds, measurement, looks)))
    return chain


def _over_looks(p: float, measurement: VariantMeasurement, looks: Looks) -> float:
    """A p-value of items that takes the earlier looks at a study into account, see `spent_p`."""
    if measurement.critical is None:
        return p
    if measurement.line is None:
        return spent_p(p, measurement.usable[-1].seeds, FIRST_LOOK, looks.max_seeds)
    declared = size_looks.usable_of(measurement, looks.sizes)
    return spent_p(p, len(measurement.line.x), FEWEST_SIZES, len(declared))


def too_early(measurement: VariantMeasurement, alpha: float, looks: Looks) -> str:
    """The reason for which a study with several looks has no word yet; empty if it may have one.

    Args:
        measurement: the variant.
        alpha: the probability of any false claim.
        looks: the declarations.
    """
    if measurement.line is not None:
        if measurement.critical != math.inf:
            return ""
        return f"no look at {len(measurement.line.x)} sizes is possible at the level {alpha:g}"
    if looks.sizes:
        return f"the first look at the declared sizes is at {FEWEST_SIZES}: no word before"
    return one_size.too_early(measurement, alpha, looks)


def _answer(
    measurement: VariantMeasurement, held: tuple[str, ...], margin: float | None, error: Error, looks: Looks
) -> Answer:
    """The word, given which claims of the chain hold."""
    if not measurement.usable:
        word: Word = "not comparable" if measurement.sizes else "undecided"
        return Answer(word, measurement, False, (), False, error)
    line, alone = measurement.line, measurement.usable[-1].ln_c
    value = alone if line is None else line.middle.estimate
    largest = alone if line is None else line.largest.estimate
    early = too_early(measurement, error.alpha, looks)
    within = margin is not None and not early and _within(measurement, math.log(margin))
    word = "equal" if within else "undecided"
    if held:
        word = "faster" if value > 0 else "slower"
    return Answer(word, measurement, "largest" in held and largest * value > 0, held, within, error)


def _within(measurement: VariantMeasurement, margin: float) -> bool:
    """Two one-sided tests at .05, in the middle and at the largest size.

    At one size the variance of the tuning is included; if it is not known, nothing is called equal. Nor is it
    where a larger size was left out because of its losses, as the largest size is the one that counts.
    """
    if measurement.beyond:
        return False
    if measurement.line is None:
        half = measurement.half_alone(0.9)
        return (
            measurement.gap is not None
            and half is not None
            and abs(measurement.usable[-1].ln_c) + half <= margin
        )
    return all(
        abs(value.estimate) + value.half_width(0.9) <= margin
        for value in (measurement.line.middle, measurement.line.largest)
    )
