"""Which variant is better, and how surely: a word per variant, with the numbers behind it.

The result of a run is its last validation loss; lower is better. Each variant is compared with the
baseline, seed by seed, and the p values of a sweep are adjusted for their number. How to read it:
docs/verdict.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from zoo.ablate.measured import Measured
from zoo.ablate.results import Results
from zoo.ablate.statistics import LEVEL, Comparison, Summary, holm, paired_t_test, summarise, welch_t_test
from zoo.utils.errors import ZooError

ALPHA = 0.05
"""Probability of a false alarm in a sweep in which no variant differs from the baseline."""

MOST_SENTENCES = 6
"""Of a judgement; more variants share sentences."""

Word = Literal["baseline", "better", "worse", "undecided", "equal", "one seed: no verdict", "no result"]

ONE_SEED: Word = "one seed: no verdict"


@dataclass(frozen=True)
class Verdict:
    """On one variant.

    Attributes:
        variant: its name.
        word: the verdict.
        planned: runs that the comparison is to have.
        final: of the final losses of finished runs; None without any.
        best: of their lowest losses.
        comparison: with the baseline; None where there is no test.
        p: of the comparison, adjusted for the number of comparisons (Holm).
        why: what the word alone does not tell.
    """

    variant: str
    word: Word
    planned: int
    final: Summary | None
    best: Summary | None
    comparison: Comparison | None = None
    p: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Judgement:
    """On a sweep.

    Attributes:
        results: what was judged.
        alpha: level of the verdicts.
        verdicts: one per variant, in their order.
    """

    results: Results
    alpha: float
    verdicts: tuple[Verdict, ...]

    @property
    def sentences(self) -> list[str]:
        """What was found: a sentence per variant besides the baseline, or of many one per word."""
        base = self.results.manifest.baseline
        others = [verdict for verdict in self.verdicts if verdict.variant != base]
        if len(others) <= MOST_SENTENCES:
            return [_sentence(verdict, base) for verdict in others]
        found = {v.word: [other.variant for other in others if other.word == v.word] for v in others}
        return [f"{word}, against {base}: {'; '.join(names)}." for word, names in found.items()]


def judge(results: Results, alpha: float = ALPHA) -> Judgement:
    """Compare every variant of a sweep with its baseline.

    Args:
        results: the sweep.
        alpha: level: how often a sweep without any difference may find one.

    Returns:
        Verdicts. Better and worse are said where the adjusted p value is at most alpha and no failed
        run could speak against it; equal where all losses are the same bit for bit.

    Raises:
        ZooError: alpha is not between 0 and 1.
    """
    if not 0 < alpha < 1:
        raise ZooError(f"report: alpha {alpha:g}: expected a probability between 0 and 1, e.g. 0.05")
    base = results.manifest.baseline
    variants = [variant.name for variant in results.manifest.variants]
    theirs = results.finished(base)
    comparable = [v for v in variants if v != base and _test(results.finished(v), theirs) is not None]
    level = alpha / max(1, len(comparable))  # what the smallest p value must be below
    comparisons = {v: _compare(results.finished(v), theirs, level) for v in comparable}
    adjusted = dict(zip(comparisons, holm([c.p for c in comparisons.values()]), strict=True))
    verdicts = [_bare(results, variant) for variant in variants]
    for i, verdict in enumerate(verdicts):
        if verdict.variant in comparisons:
            comparison, p = comparisons[verdict.variant], adjusted[verdict.variant]
            word: Word = "undecided" if p > alpha else "better" if comparison.difference < 0 else "worse"
            verdicts[i] = _cautious(results, replace(verdict, word=word, comparison=comparison, p=p))
    return Judgement(results, alpha, tuple(verdicts))


def _sentence(verdict: Verdict, base: str) -> str:
    compared = verdict.comparison
    if compared is None:
        numbers = "" if verdict.final is None else f"; final loss {verdict.final.mean:.4f}"
        return f"{verdict.variant}: {verdict.word}{numbers}."
    words = {"better": f"better than {base}", "worse": f"worse than {base}"}
    said = words.get(verdict.word, f"{verdict.word} against {base}")
    why = f" ({verdict.why})" if verdict.why else ""
    return (
        f"{verdict.variant}: {said}{why}. Its final loss differs by {compared.difference:+.4f}, "
        f"{LEVEL:.0%} interval {compared.low:+.4f} to {compared.high:+.4f}; {compared.test} over "
        f"{compared.n} seeds, p = {verdict.p:.2g} (Holm)."
    )


def _bare(results: Results, variant: str) -> Verdict:
    """What there is to say without a test."""
    base, runs = results.manifest.baseline, results.finished(variant)
    word: Word = "no result"
    if variant == base:
        word = "baseline"
    elif runs and results.finished(base):
        word = "equal" if _equal(runs, results.finished(base)) else ONE_SEED
    finals, bests = _losses(runs, "final"), _losses(runs, "best")
    return Verdict(
        variant,
        word,
        planned=len(results.runs(variant)),
        final=summarise(finals) if finals else None,
        best=summarise(bests) if bests else None,
        why="its loss is the baseline's bit for bit: it changed nothing" if word == "equal" else "",
    )


def _cautious(results: Results, verdict: Verdict) -> Verdict:
    """Take back what failed runs could turn into the contrary; say what would decide."""
    at_risk = {"better": verdict.variant, "worse": results.manifest.baseline}.get(verdict.word)
    failed = [r for r in results.runs(at_risk) if r.status == "failed"] if at_risk else []
    if at_risk and failed:
        total = len(results.runs(at_risk))
        return replace(
            verdict,
            word="undecided",
            why=f"{verdict.word} in the runs that finished, but {len(failed)} of {total} runs of "
            f"{at_risk} failed",
        )
    comparison = verdict.comparison
    if verdict.word != "undecided" or comparison is None:
        return verdict
    seeds = "more than 1000" if comparison.seeds is None else f"{comparison.seeds}"
    return replace(
        verdict,
        why=f"the smallest difference that these runs could show is {comparison.detectable:.2g}; one of the "
        f"size found would take {seeds} seeds",
    )


def _test(ours: Mapping[int, Measured], theirs: Mapping[int, Measured]) -> Literal["paired", "welch"] | None:
    """Which test the seeds allow; None: none."""
    if _equal(ours, theirs) or _idle(ours) or _idle(theirs):
        return None
    if len(ours.keys() & theirs.keys()) >= 2:
        return "paired"
    return "welch" if min(len(ours), len(theirs)) >= 2 else None


def _compare(ours: Mapping[int, Measured], theirs: Mapping[int, Measured], alpha: float) -> Comparison:
    if _test(ours, theirs) == "welch":
        return welch_t_test(_losses(ours, "final"), _losses(theirs, "final"), alpha)
    seeds = sorted(ours.keys() & theirs.keys())
    a, b = (_losses({seed: side[seed] for seed in seeds}, "final") for side in (ours, theirs))
    return paired_t_test(a, b, alpha)


def _equal(ours: Mapping[int, Measured], theirs: Mapping[int, Measured]) -> bool:
    """Whether every loss of every common seed is the same, bit for bit."""
    seeds = ours.keys() & theirs.keys()
    pairs = [(ours[seed].validation.loss, theirs[seed].validation.loss) for seed in seeds]
    return bool(pairs) and all(np.array_equal(a, b) for a, b in pairs)


def _idle(runs: Mapping[int, Measured]) -> bool:
    """Whether the seed changes nothing, so that all runs are one."""
    return len(set(_losses(runs, "final"))) < 2 <= len(runs)


def _losses(runs: Mapping[int, Measured], which: Literal["final", "best"]) -> list[float]:
    return [loss for run in runs.values() if (loss := getattr(run, which)) is not None]
