"""Verdicts on variants and their certainty: a word per variant, with the numbers behind it.

The result of a run is its last validation loss, or the last value of another measure. Each variant is
compared with the baseline, seed by seed, and the p values of a sweep are adjusted for their number. How to
read a verdict: docs/verdict.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from zoo.ablate.alpha import ALPHA
from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics
from zoo.ablate.scale.looks import Looks
from zoo.ablate.scale.tuning import GAPS
from zoo.ablate.seed_looks import compare_pairs
from zoo.ablate.statistics import (
    LEVEL,
    Comparison,
    Summary,
    holm,
    paired_t_test,
    summarise,
    welch_t_test,
)
from zoo.ablate.tuning_error import enough_seeds, gap
from zoo.utils.errors import ZooError

ROUNDING = 1e-12
"""Tolerance within which differences count as equal."""

MAX_SENTENCES = 6
"""Largest number of variants with a sentence each; with more, those with the same verdict share one."""

Word = Literal["baseline", "better", "worse", "undecided", "equal", "one seed: no verdict", "no result"]

ONE_SEED: Word = "one seed: no verdict"

Runs = Mapping[int, RunMetrics]
"""The finished runs of a variant by seed."""


@dataclass(frozen=True)
class VariantVerdict:
    """The verdict on one variant of a sweep without sizes.

    Attributes:
        variant: name of the variant.
        word: the verdict.
        planned: number of runs in the complete comparison.
        final: the final values of the finished runs; None if there are none.
        best: the best values of the finished runs; None if there are none.
        comparison: the test against the baseline; None if there is none.
        p: the p value of the comparison, adjusted for the number of comparisons (Holm).
        why: an explanation of the word, where it needs one.
        is_open: whether there is no word yet that further seeds may not give.
    """

    variant: str
    word: Word
    planned: int
    final: Summary | None
    best: Summary | None
    comparison: Comparison | None = None
    p: float | None = None
    why: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Judgement:
    """The verdicts on the variants of a sweep.

    Attributes:
        results: the results of the sweep.
        alpha: significance level of the verdicts.
        verdicts: one verdict per variant, in order.
    """

    results: Results
    alpha: float
    verdicts: tuple[VariantVerdict, ...]

    @property
    def level(self) -> float:
        """The level of the intervals; if seeds are added, that at which those of all looks hold together."""
        return LEVEL if self.results.manifest.max_seeds is None else 1 - self.alpha

    @property
    def level_text(self) -> str:
        """The level of the intervals as text: 95%."""
        return f"{100 * self.level:.6g}%"

    @property
    def sentences(self) -> list[str]:
        """A sentence per variant except for the baseline, or one per word if these are too many."""
        base = self.results.baseline
        others = [verdict for verdict in self.verdicts if verdict.variant != base]
        if len(others) <= MAX_SENTENCES:
            return [_sentence(verdict, self) for verdict in others]
        by_word = {v.word: [other.variant for other in others if other.word == v.word] for v in others}
        return [f"{word}, against {base}: {'; '.join(names)}." for word, names in by_word.items()]


def judge(results: Results, alpha: float = ALPHA) -> Judgement:
    """Compare every variant of a sweep with its baseline.

    Args:
        results: the sweep.
        alpha: significance level: the probability that a sweep without any true difference shows one.

    Returns:
        The verdicts. If the sweep adds seeds up to a declared maximum, p values and intervals account for
        the earlier looks, and a variant that cannot be tested yet keeps its share of alpha. A variant is
        better or worse if the adjusted p value is at most alpha, no failed run could have changed that, and
        tuning alone does not make such a difference. It is equal if all its losses are those of the baseline
        bit for bit.

    Raises:
        ZooError: Alpha is not between 0 and 1.
    """
    if not 0 < alpha < 1:
        raise ZooError(f"report: alpha {alpha:g}: expected a probability between 0 and 1, e.g. 0.05")
    others = [variant for variant in results.variants if variant != results.baseline]
    comparable = [variant for variant in others if _choose_test(results, variant, alpha) is not None]
    verdicts = [_verdict_without_test(results, variant, alpha) for variant in results.variants]
    waiting = [verdict.variant for verdict in verdicts if verdict.word not in ("baseline", "equal")]
    later = 0 if results.manifest.max_seeds is None else len(set(waiting) - set(comparable))
    # Holm's correction requires this level for the smallest p value.
    level = alpha / max(1, len(comparable) + later)
    comparisons = {v: _compare(results, v, alpha, level) for v in comparable}
    ps = [*(comparison.p for comparison in comparisons.values()), *[1.0] * later]
    adjusted = dict(zip(comparisons, holm(ps), strict=False))
    for i, verdict in enumerate(verdicts):
        if verdict.variant in comparisons:
            comparison, p = comparisons[verdict.variant], adjusted[verdict.variant]
            better = results.measure.cost(comparison.difference) < 0
            word: Word = "undecided" if p > alpha else "better" if better else "worse"
            verdicts[i] = _qualify(results, replace(verdict, word=word, comparison=comparison, p=p))
    return Judgement(results, alpha, tuple(verdicts))


def _sentence(verdict: VariantVerdict, judgement: Judgement) -> str:
    comparison, base, measure = verdict.comparison, judgement.results.baseline, judgement.results.measure
    adjusted = "Holm" if judgement.results.manifest.max_seeds is None else "Holm, over looks"
    if comparison is None:
        numbers = "" if verdict.final is None else f"; final {measure.title} {verdict.final.mean:.4f}"
        why = f" ({verdict.why})" if verdict.why and verdict.word == "undecided" else ""
        return f"{verdict.variant}: {verdict.word}{why}{numbers}."
    preposition = "than" if verdict.word in ("better", "worse") else "against"
    why = f" ({verdict.why})" if verdict.why else ""
    interval = f"{judgement.level_text} interval {comparison.low:+.4f} to {comparison.high:+.4f}"
    return (
        f"{verdict.variant}: {verdict.word} {preposition} {base}{why}. Its final {measure.title} differs by "
        f"{comparison.difference:+.4f}, {interval}; "
        f"{comparison.test} over {comparison.n} seeds, p = {verdict.p:.2g} ({adjusted})."
    )


def _verdict_without_test(results: Results, variant: str, alpha: float) -> VariantVerdict:
    word, why = _word_without_test(results, variant, alpha)
    final = list(results.finals(variant).values())
    runs = results.finished(variant).values()
    best = [value for run in runs if (value := run.best(results.measure)) is not None]
    return VariantVerdict(
        variant,
        word,
        planned=len(results.runs(variant)),
        final=summarise(final) if final else None,
        best=summarise(best) if best else None,
        why=why,
        is_open=word in ("undecided", ONE_SEED),
    )


def _word_without_test(results: Results, variant: str, alpha: float) -> tuple[Word, str]:
    """The word for a variant without a test, and the reason why there is no test."""
    base = results.baseline
    if variant == base:
        return "baseline", ""
    if not (results.finished(variant) and results.finished(base)):
        return "no result", ""
    if _equal(results.finished(variant), results.finished(base)):
        return "equal", "its loss is the baseline's bit for bit: it changed nothing"
    if min(len(results.finals(side)) for side in (variant, base)) < 2:
        return ONE_SEED, ""
    if _constant_difference(results, variant):
        return "undecided", "every seed differs by the same amount, so that no noise is known"
    if same := [side for side in (variant, base) if _seeds_change_nothing(results.finals(side))]:
        what = f"all seeds of {' and all of '.join(same)} end at the same {results.measure.title}"
        return "undecided", f"{what}, so that its noise is not known"
    return "undecided", _too_early(results, variant, alpha)


def _qualify(results: Results, verdict: VariantVerdict) -> VariantVerdict:
    """Withdraw a verdict that bad runs or tuning could explain; add the power to an undecided one."""
    failing = {"better": verdict.variant, "worse": results.baseline}.get(verdict.word)
    runs = results.runs(failing) if failing else []
    for status, what in (("failed", "failed"), ("interrupted", "ended early, or have not ended")):
        if bad := sum(run.status == status for run in runs):
            of = f"{bad} of {len(runs)} runs of {failing} {what}"
            why = f"{verdict.word} in the runs that finished, but {of}"
            return replace(verdict, word="undecided", why=why, is_open=False)
    comparison = verdict.comparison
    if failing and comparison is not None and comparison.is_within_least:
        why = (
            f"{verdict.word} by the seeds, but the difference is within {GAPS:g} standard deviations, "
            f"{comparison.least / GAPS:.2g} each, of what tuning alone makes"
        )
        return _left_open(results, replace(verdict, word="undecided", why=why))
    if verdict.word != "undecided" or comparison is None:
        return replace(verdict, is_open=verdict.is_open and verdict.word == "undecided")
    seeds = f"more than {comparison.most_seeds}" if comparison.seeds is None else f"{comparison.seeds}"
    needed = f"to show one of the observed size would take {seeds} seeds"
    if comparison.is_within_least:
        needed = "no number of seeds shows one of the observed size, which tuning alone makes"
    why = f"the smallest difference that these runs could show is {comparison.detectable:.2g}; {needed}"
    return _left_open(results, replace(verdict, why=why))


def _left_open(results: Results, verdict: VariantVerdict) -> VariantVerdict:
    """An undecided verdict, with a remark if no seed is added for its sake.

    That is so once the seeds have reached (sd of a pair / sd of tuning)^2 and the difference is within `GAPS`
    standard deviations of tuning. To stop makes no claim, and therefore does not change their error.
    """
    comparison, sd = verdict.comparison, gap(results, verdict.variant)
    if results.manifest.max_seeds is None or comparison is None or sd is None:
        return verdict
    if enough_seeds(comparison, sd) is None or abs(comparison.difference) > GAPS * sd:
        return verdict
    why = f"{verdict.why}; no seed is added for its sake, a stop for futility"
    return replace(verdict, why=why, is_open=False)


def _common_seeds(results: Results, variant: str) -> int:
    return len(results.finals(variant).keys() & results.finals(results.baseline).keys())


def _choose_test(results: Results, variant: str, alpha: float) -> Literal["paired", "welch"] | None:
    """The test of a variant against the baseline that the seeds allow; None if there is no such test."""
    if _equal(results.finished(variant), results.finished(results.baseline)):
        return None
    ours, theirs = results.finals(variant), results.finals(results.baseline)
    if _seeds_change_nothing(ours) or _seeds_change_nothing(theirs):
        return None
    if _constant_difference(results, variant):
        return None
    if results.manifest.max_seeds is not None:  # critical values over looks are those of pairs
        return None if _too_early(results, variant, alpha) else "paired"
    if _common_seeds(results, variant) >= 2:
        return "paired"
    return "welch" if min(len(ours), len(theirs)) >= 2 else None


def _too_early(results: Results, variant: str, alpha: float) -> str:
    """The reason for which a sweep that adds seeds has no look yet; empty if it has one, or adds none."""
    most = results.manifest.max_seeds
    if most is None:
        return ""
    return Looks(max_seeds=most).too_early(_common_seeds(results, variant), alpha, "common seeds")


def _compare(results: Results, variant: str, alpha: float, share: float) -> Comparison:
    """The test of a variant at the level `share` of `alpha`."""
    ours, theirs = results.finals(variant), results.finals(results.baseline)
    least = GAPS * (gap(results, variant) or 0.0)
    if _choose_test(results, variant, alpha) == "welch":
        return welch_t_test(list(ours.values()), list(theirs.values()), share, least)
    seeds, most = sorted(ours.keys() & theirs.keys()), results.manifest.max_seeds
    pairs = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    if most is None:
        return paired_t_test(*pairs, share, least)
    return compare_pairs(*pairs, most, alpha, share, least)


def _constant_difference(results: Results, variant: str) -> bool:
    """Whether all seeds differ from the baseline by one amount, as counts of right answers may by chance.

    Without noise a t test would be certain of any difference. For losses, which are never so coarse, it is a
    sign that the seed changes nothing else, and the test is kept.
    """
    ours, theirs = results.finals(variant), results.finals(results.baseline)
    differences = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    if results.measure.is_loss or len(differences) < 2:
        return False
    return max(differences) - min(differences) < ROUNDING


def _equal(ours: Runs, theirs: Runs) -> bool:
    """Whether every loss of every common seed is the same, bit for bit."""
    seeds = ours.keys() & theirs.keys()
    pairs = [(ours[seed].validation.values, theirs[seed].validation.values) for seed in seeds]
    return bool(pairs) and all(np.array_equal(a, b) for a, b in pairs)


def _seeds_change_nothing(finals: Mapping[int, float]) -> bool:
    """Whether several seeds have the same final value, so that the noise is unknown."""
    return len(set(finals.values())) < 2 <= len(finals)
