"""The verdict across scale: a word for every variant, with the numbers and warnings behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from zoo.ablate import student_t
from zoo.ablate.alpha import ALPHA
from zoo.ablate.scale import one_size, size_looks
from zoo.ablate.scale.doubts import doubts
from zoo.ablate.scale.line import FEWEST_SIZES, POWER, Line, Prediction, back_test
from zoo.ablate.scale.looks import FIRST_LOOK, MOST_LOOKS, Looks
from zoo.ablate.scale.measure import VariantMeasurement, add_costs, measure
from zoo.ablate.scale.robust import with_less_weight_on_outliers
from zoo.ablate.scale.runs import AGAIN, RunTable
from zoo.ablate.scale.speedup import ROUNDING, SizeSpeedup, exp
from zoo.ablate.scale.tuned import sides_of
from zoo.ablate.scale.tuning import GAPS
from zoo.ablate.scale.word import Answer, Error, Word, too_early, word_all
from zoo.utils.errors import DataError

Trend = Literal["holds", "shrinks", "grows", "trend open"]
Direction = Literal["better", "worse"]

HOLDS = math.log(1.05)
"""Largest change per doubling of the size that counts as no trend."""


@dataclass(frozen=True)
class ScaleVerdict:
    """The verdict on a variant across sizes, with the measurements behind it.

    Attributes:
        word: faster, slower, equal (within the margin), undecided or not comparable.
        measured: the measurements behind the verdict.
        at_largest: whether "faster" or "slower" is shown at the largest size as well.
        claims: the claims that hold, in their order.
        trend: whether the gain, or the disadvantage of a slower variant, holds, shrinks or grows with the
            size; None without a line.
        within_margin: whether the speed-up lies within the margin.
        predicted: the prediction at twice the largest size; None without a line, after a missed back-test,
            or if the sizes span less than that factor of two.
        back_test: the prediction of the largest size by the smaller ones.
        detectable: the factor that this study would have detected with probability .8, at the level of a
            variant's first claim; None without seeds.
        futile: whether further seeds would not decide it, because the error of tuning is the larger part.
        robust: the answer by Huber's estimate; None if there is none.
        warnings: the reasons for doubt.
    """

    word: Word
    measured: VariantMeasurement
    at_largest: bool = False
    claims: tuple[str, ...] = ()
    trend: Trend | None = None
    within_margin: bool = False
    predicted: Prediction | None = None
    back_test: Prediction | None = None
    detectable: float | None = None
    futile: bool = False
    robust: Answer | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the variant is undecided, and further seeds or sizes may decide it."""
        return self.word == "undecided" and not self.futile

    @property
    def name(self) -> str:
        """The name of the variant."""
        return self.measured.name

    @property
    def directions(self) -> dict[str, Direction]:
        """Whether the variant is better or worse than the baseline, for each claim that holds.

        Better: it needs fewer tokens (in the middle of the sizes, at the largest) or fewer seconds, or has
        higher scores (items).
        """
        line, items = self.line, self.measured.items
        found = {cost.name: cost.ln_c for cost in self.measured.costs}
        if items is not None:
            found["items"] = items.difference
        if line is not None:
            found |= {"middle": line.middle.estimate, "largest": line.largest.estimate}
        elif self.largest is not None:
            found["largest"] = self.largest.ln_c
        return {claim: "better" if found[claim] > 0 else "worse" for claim in self.claims}

    @property
    def line(self) -> Line | None:
        """The line across the sizes; None with fewer than four."""
        return self.measured.line

    @property
    def largest(self) -> SizeSpeedup | None:
        """The largest size that was judged."""
        return self.measured.usable[-1] if self.measured.usable else None


def judge(
    table: RunTable,
    baseline: str,
    *,
    margin: float | None = None,
    alpha: float = ALPHA,
    looks: Looks | None = None,
    waiting: Iterable[str] = (),
) -> dict[str, ScaleVerdict]:
    """Judge every variant of a table against the baseline.

    A variant called like the baseline, with ``AGAIN`` behind it, is the baseline with other seeds (A/A).
    What it would claim is no claim about a method, but an alarm about the set-up. The alarm has an error
    `alpha` of its own, so that the check does not make other claims harder. This is our choice.

    Args:
        table: finished runs; several rates at one size count as its tuning (`zoo.ablate.scale.tuned`).
        baseline: the variant to compare with.
        margin: the factor within which two sides count as equal, above 1; None: nothing is called equal.
        alpha: the probability of any false claim, and of a false alarm.
        looks: the declarations if seeds or sizes are added until a decision; None: there is one look.
        waiting: names of variants that will make claims at later looks. Those without runs in the table keep
            their share of the error until then; with one look there is nothing to wait for.

    Returns:
        The verdict on every other variant.

    Raises:
        DataError: There is no such baseline or no other variant, the margin is 1 or less, `alpha` is no
            probability, or there are more seeds or other sizes than were declared.
    """
    table.require_variant(baseline)
    others = [name for name in table.variants if name != baseline]
    if not others:
        raise DataError(f"there are only runs of '{baseline}'; expected another variant to compare it with")
    if margin is not None and not 1 < margin < math.inf:
        raise DataError(f"margin {margin:g}: expected a factor above 1, for instance 1.05")
    if not 0 < alpha < 1:
        raise DataError(f"alpha {alpha:g}: expected a probability between 0 and 1, for instance 0.05")
    sides = sides_of(table)
    measurements = {name: measure(name, sides[baseline], sides[name]) for name in others}
    looks = looks or Looks()
    _check_looks(looks, measurements)
    robust = {
        name: moved
        for name, variant in measurements.items()
        if (moved := with_less_weight_on_outliers(variant)) is not None
    }
    for variant in (*measurements.values(), *robust.values()):
        variant.loss = table.loss
        _look(variant, alpha, looks)
        add_costs(variant, _ratios(table, baseline, variant.name))
    waiting = {*waiting} - {*table.variants} if looks.several else set()
    answers = word_all(measurements, baseline, margin, alpha, looks, waiting)
    others_answers = word_all({**measurements, **robust}, baseline, margin, alpha, looks, waiting)
    return {
        name: _verdict(answer, margin, looks, others_answers[name] if name in robust else None)
        for name, answer in answers.items()
    }


def _look(variant: VariantMeasurement, alpha: float, looks: Looks) -> None:
    """Give the measurements the critical value of this look, if seeds or sizes are added."""
    if variant.line is None:
        variant.critical = one_size.critical_value(variant, alpha, looks)
    elif looks.sizes:
        variant.critical = size_looks.critical_value(variant, alpha, looks.sizes)
    if variant.critical is not None:
        variant.level = 1 - alpha
        variant.line = variant.line and variant.line.looked_at(variant.critical, variant.level)


def alarms(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> list[str]:
    """A sentence, without full stop, on a copy of the baseline that is neither equal nor undecided."""
    name = baseline + AGAIN
    if name not in verdicts or verdicts[name].word in ("equal", "undecided"):
        return []
    return [f"{name}: the baseline differs from itself: something is wrong with the set-up"]


def _check_looks(looks: Looks, measurements: Mapping[str, VariantMeasurement]) -> None:
    """Refuse declarations that contradict each other, are impossible or have no effect."""
    declared = {
        "a maximum of seeds": looks.max_seeds is not None,
        "seeds without a maximum (anytime)": looks.anytime,
        "sizes": bool(looks.sizes),
    }
    given = [what for what, is_given in declared.items() if is_given]
    if len(given) > 1:
        raise DataError(f"declared: {' and '.join(given)}; expected one of them")
    if looks.max_seeds is not None and not FIRST_LOOK <= looks.max_seeds <= MOST_LOOKS:
        raise DataError(f"max_seeds: value {looks.max_seeds}: expected {FIRST_LOOK} to {MOST_LOOKS} seeds")
    enough = FEWEST_SIZES <= len(looks.sizes) <= MOST_LOOKS
    if looks.sizes and not (enough and list(looks.sizes) == sorted(set(looks.sizes))):
        raise DataError(
            f"declared sizes {', '.join(f'{size:g}' for size in looks.sizes)}: expected {FEWEST_SIZES} to "
            f"{MOST_LOOKS}, ascending"
        )
    of_seeds = looks.max_seeds is not None or looks.anytime
    if of_seeds and all(variant.line is not None for variant in measurements.values()):
        raise DataError(
            f"declared: {given[0]}: has no effect on a line across sizes, to which sizes are added and not "
            "seeds; expected the declared sizes"
        )


def _ratios(table: RunTable, baseline: str, name: str) -> tuple[float, list[float]] | None:
    """The size at which speeds were measured, and ln of the variant's speed over the baseline's by round."""
    speeds = table.speeds
    if speeds is None or not {baseline, name} <= speeds.rounds.keys():
        return None
    pairs = zip(speeds.rounds[name], speeds.rounds[baseline], strict=True)
    return speeds.size, [math.log(theirs / ours) for theirs, ours in pairs]


def _verdict(answer: Answer, margin: float | None, looks: Looks, robust: Answer | None) -> ScaleVerdict:
    """The verdict with its descriptions and doubts."""
    measurement, error, word = answer.measured, answer.error, answer.word
    usable, line = measurement.usable, measurement.line
    if not usable:
        return ScaleVerdict(word, measurement, warnings=tuple(doubts(measurement)))
    early = too_early(measurement, error.alpha, looks)
    futile = False
    notes: list[str] = []
    if line is None and not early:
        limit = None if margin is None else math.log(margin)
        futile = word == "undecided" and one_size.is_futile(measurement, limit, error.alpha, looks)
        shared = (error.share, error.variants)
        notes = list(one_size.notes(measurement, looks, *shared, held=bool(answer.claims), futile=futile))
    test = back_test(usable) if line is not None else None
    missed = test is not None and not test.holds(usable[-1].ln_c)
    return ScaleVerdict(
        word,
        measurement,
        at_largest=answer.at_largest,
        claims=answer.claims,
        trend=None if line is None else "trend open" if measurement.beyond else _trend(line, word),
        within_margin=answer.within_margin,
        predicted=None if missed or measurement.beyond else _predicted(line),
        back_test=test,
        detectable=None if early else _detectable(measurement, error, looks),
        futile=futile,
        robust=robust,
        warnings=(
            *notes,
            *_of_single_runs(answer, robust),
            *doubts(measurement, missed, early, error.note(measurement.level)),
        ),
    )


def _of_single_runs(answer: Answer, robust: Answer | None) -> Iterator[str]:
    """A sentence, without full stop, on a word that another weight of outlying runs would change."""
    if robust is None or (robust.word, robust.at_largest) == (answer.word, answer.at_largest):
        return
    yield (
        f"single runs decide the word: {answer.in_words} by the mean of all runs, {robust.in_words} by "
        "Huber's estimate, in which outlying runs such as spiked ones have less weight"
    )


def _predicted(line: Line | None) -> Prediction | None:
    """The prediction at twice the largest size, which is never farther than the range that was measured."""
    if line is None or math.log(2) > float(np.ptp(line.x)):
        return None
    return line.predict(float(line.x.max()) + math.log(2))


def _detectable(measurement: VariantMeasurement, error: Error, looks: Looks) -> float | None:
    """The factor that the study would have shown with probability `POWER`, by a variant's first claim.

    At one size it must exceed the effect of tuning alone and the noise of the seeds. It is None if no factor
    is large enough, or if the sides are the same run by run, which shows no noise.
    """
    if measurement.line is not None:
        factor = measurement.line.middle.detectable(error.share)
    else:
        se, df = measurement.se_alone, measurement.usable[-1].seeds - 1
        quantile = one_size.quantile_of_claims(measurement, looks, error.alpha, error.share)
        if se is None or quantile == math.inf:
            return None
        factor = exp(max(quantile * se, GAPS * (measurement.gap or 0.0)) + student_t.quantile(POWER, df) * se)
    return factor if math.log(factor) > ROUNDING else None


def _trend(line: Line, word: Word) -> Trend:
    """The change of the gain as the size doubles; that of the disadvantage if the variant is slower."""
    change, half = line.slope.estimate * math.log(2), line.slope.half95 * math.log(2)
    if abs(change) + half <= HOLDS:
        return "holds"
    if abs(change) <= half:
        return "trend open"
    return "grows" if (change > 0) == (word != "slower") else "shrinks"
