"""The verdict across scale: a word for every variant, with the numbers and warnings behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy import stats

from zoo.ablate.scale.chain import claims
from zoo.ablate.scale.items import ItemDifference, compare_items
from zoo.ablate.scale.law import Law, fit_law
from zoo.ablate.scale.line import FEWEST_SIZES, Line, Prediction, back_test
from zoo.ablate.scale.runs import FinishedRun, RunTable, cells
from zoo.ablate.scale.speedup import Cells, SizeSpeedup, size_speedup
from zoo.utils.errors import DataError, did_you_mean

Word = Literal["faster", "slower", "equal", "undecided", "not comparable"]
Trend = Literal["holds", "shrinks", "grows", "trend open"]

HOLDS = math.log(1.05)
"""A trend within this per doubling of the size counts as none."""
PAIRED_FLOPS = 1.25
"""Sizes of two sides belong together if their FLOPs per token differ by no more than this factor."""


@dataclass(frozen=True)
class Left:
    """A size that could not be used.

    Attributes:
        params: of the baseline's model.
        reason: why.
    """

    params: float
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a variant's token speed-up is in another currency.

    Attributes:
        name: flops or seconds.
        ln_c: ln of the speed-up at the largest size.
        half95: half its 95 % interval.
        p_value: two-sided, of no difference.
    """

    name: str
    ln_c: float
    half95: float
    p_value: float


@dataclass(frozen=True)
class ScaleVerdict:
    """What is known of a variant.

    Attributes:
        name: the variant.
        word: faster, slower, equal (within the margin), undecided or not comparable.
        at_largest: whether "faster" or "slower" is shown at the largest size as well.
        trend: whether the gain holds, shrinks or grows with the size; None without a line.
        sizes: every size by itself.
        left_out: sizes without a number, and why.
        line: across the sizes; None with fewer than four.
        predicted: at twice the largest size; None without a line, or after a missed back-test.
        back_test: what the smaller sizes said of the largest one, and whether it came so.
        law: the shared scaling law, a second opinion.
        costs: the speed-up in FLOPs and in seconds, where they are known.
        items: the scores of questions at the largest size, where they are known.
        detectable: the factor that this study would have found with probability .8; None without seeds.
        warnings: what a reader must know.
    """

    name: str
    word: Word
    at_largest: bool = False
    trend: Trend | None = None
    sizes: tuple[SizeSpeedup, ...] = ()
    left_out: tuple[Left, ...] = ()
    line: Line | None = None
    predicted: Prediction | None = None
    back_test: Prediction | None = None
    law: Law | None = None
    costs: tuple[Cost, ...] = ()
    items: ItemDifference | None = None
    detectable: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass
class _Draft:
    """A verdict in the making, with the p-values of its claims."""

    name: str
    sizes: list[SizeSpeedup] = field(default_factory=list)
    left_out: list[Left] = field(default_factory=list)
    line: Line | None = None
    costs: list[Cost] = field(default_factory=list)
    items: ItemDifference | None = None
    p_values: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    law: Law | None = None


def judge(
    table: RunTable, baseline: str, *, margin: float | None = None, alpha: float = 0.05
) -> dict[str, ScaleVerdict]:
    """Judge every variant of a table against the baseline.

    Args:
        table: finished runs; several rates at one size count as tuning, and the rate with the most
            runs counts as the chosen one.
        baseline: the variant to compare with.
        margin: the factor within which two sides count as equal, above 1; None: nothing is called equal.
        alpha: the probability of any false claim.

    Returns:
        Of every other variant the verdict.

    Raises:
        DataError: no such baseline, nothing to compare it with, or a margin of 1 or less, or no probability.
    """
    if baseline not in table.variants:
        raise DataError(f"no variant called '{baseline}'{did_you_mean(baseline, table.variants)}")
    others = [name for name in table.variants if name != baseline]
    if not others:
        raise DataError(f"there are only runs of '{baseline}'; expected another variant to compare it with")
    if margin is not None and not 1 < margin < math.inf:
        raise DataError(f"margin {margin:g}: expected a factor above 1, for instance 1.05")
    if not 0 < alpha < 1:
        raise DataError(f"alpha {alpha:g}: expected a probability between 0 and 1, for instance 0.05")
    drafts = {name: _measure(table.of(baseline), name, table.of(name)) for name in others}
    chains = {name: draft.p_values for name, draft in drafts.items() if draft.p_values}
    held = claims(chains, alpha) if chains else {}
    return {name: _worded(draft, held.get(name, 0), margin) for name, draft in drafts.items()}


def _measure(baseline: Sequence[FinishedRun], name: str, variant: Sequence[FinishedRun]) -> _Draft:
    """Everything but the word."""
    draft = _Draft(name)
    ours, theirs = _tuned(baseline, draft, "the baseline"), _tuned(variant, draft, name)
    pairs = _paired(ours, theirs, draft)
    for params, (mine, other) in sorted(pairs.items()):
        _add_size(draft, params, cells(mine)[params], next(iter(cells(other).values())))
    usable = [size for size in draft.sizes if size.comparable]
    if len(usable) >= FEWEST_SIZES and any(size.se is not None for size in usable):
        draft.line = Line(usable)
        draft.p_values = [draft.line.middle.p_value, draft.line.largest.p_value]
        left = {s.params for s in usable}
        sides = [{n: cells(pair[i]) for n, pair in pairs.items() if n in left} for i in (0, 1)]
        flat = [{n: next(iter(c.values())) for n, c in side.items()} for side in sides]
        draft.law = fit_law(flat[0], flat[1])
        _check_law(draft, flat)
    else:
        draft.p_values = [size.p_value for size in usable[-1:] if size.p_value is not None]
        if len(draft.sizes) > 1:
            draft.warnings.append(
                f"{len(usable)} usable sizes: no line is drawn below {FEWEST_SIZES}; the word is that of the "
                "largest size alone"
            )
        if usable:
            draft.warnings.append(
                "one size: the error of tuning is shared by all seeds and is not in this interval; false "
                "alarms are more frequent than stated"
            )
    if usable:
        _add_costs(draft, pairs, usable[-1])
        _add_items(draft, pairs[usable[-1].params])
    tried = [len({(run.size, run.rate) for run in side}) for side in (baseline, variant)]
    _warn(draft, pairs, tried)
    return draft


def _add_size(draft: _Draft, params: float, baseline: Cells, variant: Cells) -> None:
    """Fit one size, or leave it out and say why."""
    if not all(math.isfinite(loss) for side in (baseline, variant) for loss in side.values()):
        draft.left_out.append(Left(params, "runs diverged"))
        return
    try:
        size = size_speedup(params, baseline, variant)
    except ValueError as error:
        draft.left_out.append(Left(params, str(error)))
        return
    draft.sizes.append(size)
    if not size.comparable:
        draft.left_out.append(
            Left(params, f"losses hardly overlap: the factor is beyond {math.exp(size.limit):.2f} x")
        )


def _tuned(runs: Sequence[FinishedRun], draft: _Draft, side: str) -> dict[float, list[FinishedRun]]:
    """The runs of every size at the chosen rate; a rate at the border of its grid leaves the size out."""
    chosen: dict[float, list[FinishedRun]] = {}
    for size in sorted({run.size for run in runs}):
        here = [run for run in runs if run.size == size]
        rates = sorted({run.rate for run in here if run.rate is not None})
        if len(rates) < 2:
            chosen[size] = here
            continue
        most = max(rates, key=lambda rate: sum(run.rate == rate for run in here))
        chosen[size] = [run for run in here if run.rate == most]
        if most in (rates[0], rates[-1]):
            del chosen[size]
            draft.left_out.append(
                Left(
                    size,
                    f"the best rate of {side}, {most:g}, lies at the border of {rates[0]:g} to {rates[-1]:g}",
                )
            )
    return chosen


def _paired(
    baseline: Mapping[float, list[FinishedRun]], variant: Mapping[float, list[FinishedRun]], draft: _Draft
) -> dict[float, tuple[list[FinishedRun], list[FinishedRun]]]:
    """Both sides' runs by the baseline's size: by the number of parameters, else by FLOPs per token."""
    pairs = {size: (runs, variant[size]) for size, runs in baseline.items() if size in variant}
    rest = {size: runs for size, runs in variant.items() if size not in baseline}
    for size, runs in baseline.items():
        if size in pairs or not rest:
            continue
        distances = {
            other: abs(math.log(_per_token(rest[other], other) / _per_token(runs, size))) for other in rest
        }
        nearest = min(distances, key=lambda other: distances[other])
        if distances[nearest] <= math.log(PAIRED_FLOPS):
            pairs[size] = (runs, rest.pop(nearest))
            if distances[nearest] > math.log(1.01):
                draft.warnings.append(
                    f"size {size:g}: FLOPs or parameters differ by {math.expm1(distances[nearest]):.0%} "
                    "between the sides"
                )
    unpaired = [size for size in {*baseline, *rest} if size not in pairs]
    draft.left_out += [Left(size, "only one side has runs of this size") for size in sorted(unpaired)]
    return pairs


def _per_token(runs: Sequence[FinishedRun], size: float) -> float:
    """FLOPs per token, or parameters where FLOPs are not known."""
    flops = [run.flops / run.tokens for run in runs if run.flops is not None]
    return float(np.mean(flops)) if flops else size


def _check_law(draft: _Draft, sides: Sequence[Mapping[float, Cells]]) -> None:
    assert draft.line is not None and draft.law is not None  # the caller has just made them
    largest = draft.line.largest
    wider = max(largest.half95, draft.law.half95 or 0.0)
    if abs(draft.law.ln_c - largest.estimate) > wider:
        draft.warnings.append(
            f"law and line disagree at the largest size: {math.exp(draft.law.ln_c):.2f} x and "
            f"{math.exp(largest.estimate):.2f} x"
        )
    robust = fit_law(sides[0], sides[1], robust=True)
    if robust.half95 is not None and draft.law.half95 is not None:
        words = [_side(law.ln_c, law.half95 or math.inf) for law in (draft.law, robust)]
        if words[0] != words[1]:
            draft.warnings.append(
                f"spikes decide: with Huber's loss the law says {math.exp(robust.ln_c):.2f} x instead of "
                f"{math.exp(draft.law.ln_c):.2f} x"
            )


def _side(value: float, half: float) -> int:
    """Whether an interval lies above 0, below it, or holds it."""
    return int(value - half > 0) - int(value + half < 0)


def _add_costs(
    draft: _Draft, pairs: Mapping[float, tuple[list[FinishedRun], list[FinishedRun]]], largest: SizeSpeedup
) -> None:
    """The speed-up in FLOPs and seconds at the largest size; half widths add in squares."""
    mine, other = pairs[largest.params]
    base, half, p = largest.ln_c, largest.half_width(), largest.p_value
    if draft.line is not None:
        base, half, p = draft.line.largest.estimate, draft.line.largest.half95, draft.line.largest.p_value
    if half is None or p is None:
        return
    for name in ("flops", "seconds"):
        rates = [
            [math.log(cost / run.tokens) for run in side if (cost := getattr(run, name)) is not None]
            for side in (mine, other)
        ]
        if not all(rates):
            continue
        ratio = float(np.mean(rates[0]) - np.mean(rates[1]))
        spread = sum(float(np.var(r, ddof=1)) / len(r) for r in rates if len(r) > 1)
        wider = math.hypot(half, 2 * math.sqrt(spread))
        # The p-value of a normal whose interval is as wide: the cost adds its own noise to the tokens'.
        z = abs(base + ratio) / (wider / 1.959964)
        draft.costs.append(Cost(name, base + ratio, wider, math.erfc(z / math.sqrt(2))))
        if draft.line is not None:
            draft.p_values.append(draft.costs[-1].p_value)


def _add_items(draft: _Draft, pair: tuple[list[FinishedRun], list[FinishedRun]]) -> None:
    """Scores of questions at the largest budget that both sides have."""
    budgets = [{run.tokens for run in side if run.items is not None} for side in pair]
    if not all(budgets):
        return
    scores = []
    for side, tokens in zip(pair, (max(b) for b in budgets), strict=True):
        scores.append(np.array([run.items for run in side if run.items is not None and run.tokens == tokens]))
    if min(len(side) for side in scores) < 2:
        draft.warnings.append(
            "items: one seed each says something of two checkpoints, not of two recipes; not judged"
        )
        return
    draft.items = compare_items(scores[0], scores[1])


def _warn(
    draft: _Draft, pairs: Mapping[float, tuple[list[FinishedRun], list[FinishedRun]]], tried: Sequence[int]
) -> None:
    """What a reader must know before believing the word."""
    if draft.line is not None and len(draft.line.x) < 5:
        draft.warnings.append("fewer than five sizes: the line rests on few replicates")
    single = [size.params for size in draft.sizes if size.se is None]
    if single:
        draft.warnings.append(
            f"one seed at {_listed(single)}: the seeds' noise is taken from the other sizes"
        )
    if len(draft.sizes) > 1:
        ratios = [max(run.tokens for run in pairs[size.params][0]) / size.params for size in draft.sizes]
        if max(ratios) > 4 * min(ratios):
            draft.warnings.append(
                f"tokens per parameter change between {max(ratios):.3g} and {min(ratios):.3g} over the sizes"
                ": the trend is also one of that ratio"
            )
    if tried[0] != tried[1]:
        draft.warnings.append(
            f"the sides were tuned unequally: {tried[0]} and {tried[1]} rates over all sizes"
        )


def _listed(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size:g}" for size in sizes)


def _worded(draft: _Draft, held: int, margin: float | None) -> ScaleVerdict:
    """The verdict, given how many claims of the chain hold."""
    usable = [size for size in draft.sizes if size.comparable]
    if not usable:
        word: Word = "not comparable" if draft.sizes else "undecided"
        return ScaleVerdict(
            draft.name,
            word,
            sizes=tuple(draft.sizes),
            left_out=tuple(draft.left_out),
            warnings=tuple(draft.warnings),
        )
    line = draft.line
    middle = line.middle.estimate if line is not None else usable[-1].ln_c
    word = "undecided"
    if held:
        word = "faster" if middle > 0 else "slower"
    elif margin is not None and _equal(line, usable[-1], math.log(margin)):
        word = "equal"
    test = back_test(usable) if line is not None else None
    missed = test is not None and not test.holds(usable[-1].ln_c)
    warnings = list(draft.warnings)
    if missed:
        warnings.append(
            "the largest size lies outside what the smaller ones predicted: nothing is said beyond it"
        )
    if line is not None and _drifts(usable):
        warnings.append("the factor depends on the budget: the drift excludes 0")
    half = usable[-1].half_width()
    detectable = None if half is None else math.exp(1.4 * half)
    if line is not None:
        detectable = line.middle.detectable()
    return ScaleVerdict(
        draft.name,
        word,
        at_largest=held > 1 or (held == 1 and line is None),
        trend=None if line is None else _trend(line),
        sizes=tuple(draft.sizes),
        left_out=tuple(draft.left_out),
        line=line,
        predicted=None if line is None or missed else line.predict(float(line.x.max()) + math.log(2)),
        back_test=test,
        law=draft.law,
        costs=tuple(draft.costs),
        items=draft.items,
        detectable=detectable,
        warnings=tuple(warnings),
    )


def _drifts(sizes: Sequence[SizeSpeedup]) -> bool:
    """Whether the mean drift over the sizes excludes 0, by Student's t over sizes."""
    drifts = [size.drift for size in sizes]
    return bool(np.ptp(drifts)) and float(stats.ttest_1samp(drifts, 0.0).pvalue) < 0.05


def _equal(line: Line | None, largest: SizeSpeedup, margin: float) -> bool:
    """Two one-sided tests at .05, in the middle and at the largest size."""
    if line is None:
        half = largest.half_width(0.9)
        return half is not None and abs(largest.ln_c) + half <= margin
    return all(abs(value.estimate) + value.half_width(0.9) <= margin for value in (line.middle, line.largest))


def _trend(line: Line) -> Trend:
    """What becomes of the gain, or of the loss, as the size doubles."""
    change, half = line.slope.estimate * math.log(2), line.slope.half95 * math.log(2)
    if abs(change) + half <= HOLDS:
        return "holds"
    if abs(change) <= half:
        return "trend open"
    return "grows" if (change > 0) == (line.middle.estimate > 0) else "shrinks"
