"""A verdict across scale in sentences and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zoo.ablate.scale.factors import Factor, estimated, factor, factor_text, number_text
from zoo.ablate.scale.items_table import difference_column, difference_text, items_table, with_interval
from zoo.ablate.scale.line import Estimate
from zoo.ablate.scale.measure import SizePair, UnusedSize, VariantMeasurement, loss_unit
from zoo.ablate.scale.noise import noise_table
from zoo.ablate.scale.outcomes import common_budget
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.speedup import exp
from zoo.ablate.scale.tuning_table import tuning_table
from zoo.ablate.scale.verdict import ScaleVerdict
from zoo.ablate.statistics import LEVEL, format_level
from zoo.ablate.table import Column, Table, format_p

DOUBLING = math.log(2)


def sentence(verdict: ScaleVerdict, baseline: str, margin: float | None = None) -> str:
    """The main result for a variant, in one sentence."""
    line, name, largest = verdict.line, verdict.name, verdict.largest
    if verdict.word == "not comparable" or largest is None:
        reasons = "; ".join(f"{sizes}: {reason}" for reason, sizes in _left_out(verdict.measured))
        preposition = "with" if verdict.word == "not comparable" else "against"
        return f"{name}: {verdict.word} {preposition} {baseline} ({reasons})."
    if verdict.word == "undecided":
        shown = ""
        if verdict.detectable:
            shown = f"; this study would have shown {number_text(verdict.detectable)} x"
        return " ".join([f"{name}: undecided against {baseline}{shown}.", *_not_judged(verdict)])
    if verdict.word == "equal":
        assert margin is not None  # "equal" needs a margin
        where = "at one size" if line is None else f"{len(line.x)} sizes"
        alone = (largest.ln_c, verdict.measured.half_alone(0.9))
        value = alone if line is None else _widest(line.middle, line.largest)
        low, high = (number_text(exp(value[0] + sign * (value[1] or 0))) for sign in (-1, 1))
        level = format_level(verdict.measured.level_of(0.9))
        return f"{name}: equal to {baseline} within {margin:g} x ({level} interval {low}-{high}, {where})."
    more, sign = ("fewer", 1) if verdict.word == "faster" else ("as many", -1)
    less = f", by less than {margin:g} x" if verdict.within_margin else ""
    if line is None:
        size = format_count(largest.params)
        half = verdict.measured.half_alone()
        return (
            f"{name}: {verdict.word} than {baseline}{less}. At {size}, the only size judged, it needs "
            f"{factor_text(factor(sign * largest.ln_c, half))} {more} tokens."
            + "".join(f" {part}" for part in (*_not_judged(verdict), *_further(verdict, size)))
            + _level_text(verdict)
        )
    size = format_count(largest.params)
    middle = factor_text(estimated(line.middle, sign))
    at_largest = f"at {size} {factor_text(estimated(line.largest, sign))}"
    if not verdict.at_largest:
        shown = _reversed(verdict) or "not shown"
        at_largest = f"{shown} at {size} ({factor_text(estimated(line.largest, sign))})"
    parts = [
        f"{name}: {verdict.word} than {baseline}{less}. In the middle of the sizes "
        f"({format_count(math.exp(float(line.x.mean())))}) it needs {middle} {more} tokens; {at_largest}.",
        _trend(verdict, sign),
        *_not_judged(verdict),
    ]
    if verdict.predicted is not None:
        twice = factor(sign * verdict.predicted.estimate, verdict.predicted.half95)
        parts.append(f"At {format_count(2 * largest.params)} expect {factor_text(twice)}.")
    parts += _further(verdict, size)
    return " ".join(part for part in parts if part) + _level_text(verdict)


def _further(verdict: ScaleVerdict, size: str) -> Iterator[str]:
    """Sentences on FLOPs, seconds and items at the largest size."""
    for cost in verdict.measured.costs:
        name = "FLOPs" if cost.name == "flops" else cost.name.capitalize()
        found = factor_text(factor(cost.ln_c, cost.half95))
        yield f"{name}: {found} at {size}{_if_worse(verdict, cost.name)}."
    if (outcome := verdict.measured.judged_outcome) is not None:
        found = difference_text(with_interval(outcome.difference))
        yield f"{outcome.title}: {found} at {size}{_if_worse(verdict, 'items')}."


def _not_judged(verdict: ScaleVerdict) -> Iterator[str]:
    """Sentences on the sizes above the judged ones."""
    these = "this size" if verdict.line is None else "these sizes"
    for reason, sizes in _by_reason(verdict.measured.beyond):
        yield f"Not judged, above {these}: {sizes}, where {reason}."


def _level_text(verdict: ScaleVerdict) -> str:
    """The level of the intervals as a further sentence; empty if it is the usual one."""
    level, others = verdict.measured.level, ""
    if verdict.line is not None:
        others = f", those of predictions and items {format_level(LEVEL)}"
    elif verdict.measured.items is not None:
        others = f", that of items {format_level(LEVEL)}"
    return "" if level == LEVEL else f" Intervals: {format_level(level)}{others}."


def levels_text(verdicts: Mapping[str, ScaleVerdict]) -> str:
    """The levels of the variants' intervals: 95 %, or 99 % (muon), 95 % (lion)."""
    names: dict[float, list[str]] = {}
    for name, verdict in verdicts.items():
        names.setdefault(verdict.measured.level, []).append(name)
    if len(names) == 1:
        return format_level(next(iter(names)))
    return ", ".join(f"{format_level(level)} ({', '.join(of)})" for level, of in names.items())


def other_levels(verdicts: Mapping[str, ScaleVerdict]) -> bool:
    """Whether any variant has intervals of another level than the usual one."""
    return any(verdict.measured.level != LEVEL for verdict in verdicts.values())


def _if_worse(verdict: ScaleVerdict, claim: str) -> str:
    """The direction of a claim, if it holds and speaks against the variant."""
    return ", worse" if verdict.directions.get(claim) == "worse" else ""


def _reversed(verdict: ScaleVerdict) -> str:
    """The word at the largest size, if a claim there contradicts that in the middle; otherwise empty."""
    if "largest" not in verdict.claims or verdict.at_largest:
        return ""
    return "slower" if verdict.word == "faster" else "faster"


def word_text(verdict: ScaleVerdict) -> str:
    """The verdict with its qualification in a few words."""
    if verdict.word == "undecided" and verdict.detectable:
        return f"undecided; would have shown {number_text(verdict.detectable)} x"
    if verdict.word in ("faster", "slower") and not verdict.at_largest and verdict.largest is not None:
        shown = _reversed(verdict) or "not shown"
        return f"{verdict.word}, {shown} at {format_count(verdict.largest.params)}"
    return verdict.word


def speedup_text(verdict: ScaleVerdict) -> str:
    """The token speed-up in the middle of the sizes (without a line: at the largest); "" if unknown."""
    if verdict.line is not None:
        return factor_text(estimated(verdict.line.middle))
    if verdict.largest is None:
        return ""
    return factor_text(factor(verdict.largest.ln_c, verdict.measured.half_alone()))


def _left_out(measurement: VariantMeasurement) -> Iterator[tuple[str, str]]:
    """The reasons for which sizes were left out, each with its sizes."""
    return _by_reason(measurement.left_out)


def _by_reason(left_out: Sequence[UnusedSize]) -> Iterator[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for size in left_out:
        by_reason.setdefault(size.reason, []).append(format_count(size.params))
    return ((reason, ", ".join(sizes)) for reason, sizes in by_reason.items())


def _widest(*values: Estimate) -> tuple[float, float]:
    """The estimate whose 90 % interval reaches farthest from 0, and half of its interval."""
    worst = max(values, key=lambda value: abs(value.estimate) + value.half_width(0.9))
    return worst.estimate, worst.half_width(0.9)


def _trend(verdict: ScaleVerdict, sign: int) -> str:
    """The trend of the factor that the sentence names, which is 1 / c if the variant is slower."""
    if verdict.line is None or verdict.trend is None:
        return ""
    change, low, high = _per_doubling(verdict.line.slope, sign)
    what = "gain" if verdict.word == "faster" else "disadvantage"
    begin = "The trend is open" if verdict.trend == "trend open" else f"The {what} {verdict.trend}"
    return (
        f"{begin}: the factor changes by {_percent(change)} per doubling of the size ({_percent(low)} to "
        f"{_percent(high)})."
    )


def _per_doubling(slope: Estimate, sign: int = 1) -> Factor:
    change, half = sign * slope.estimate, slope.half95
    change, low, high = (exp(each * DOUBLING) - 1 for each in (change, change - half, change + half))
    return change, low, high


def sentences(verdicts: Mapping[str, ScaleVerdict], baseline: str, margin: float | None) -> list[str]:
    """One sentence per variant."""
    return [sentence(verdict, baseline, margin) for verdict in verdicts.values()]


def notes(verdicts: Mapping[str, ScaleVerdict]) -> list[str]:
    """Sizes that were left out, and warnings, without full stops; common ones are stated once."""
    by_text: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        left = [f"left out, {sizes}: {reason}" for reason, sizes in _left_out(verdict.measured)]
        for text in [*left, *verdict.warnings]:
            by_text.setdefault(text, []).append(name)
    shared = len(verdicts)
    return [
        text
        if (len(names) == shared and shared > 1) or text.startswith(f"{names[0]}: ")
        else f"{', '.join(names)}: {text}"
        for text, names in by_text.items()
    ]


FACTOR_PARTS = ("", ", low", ", high")


def _factor_column(title: str) -> Column:
    return Column(title, factor_text, parts=tuple(title + part for part in FACTOR_PARTS))


def _percent(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.1%}"  # no -0.0 %


def verdict_table(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> Table:
    """One row per variant."""
    several = any(len(verdict.measured.outcomes) > 1 for verdict in verdicts.values())
    asked = any(verdict.measured.items is not None for verdict in verdicts.values())
    items = [difference_column("items")] if asked else []
    other = other_levels(verdicts)
    columns = [
        Column("variant", align_right=False),
        Column("word", align_right=False),
        *([Column("intervals", format_level)] if other else []),
        _factor_column("middle"),
        _factor_column("largest"),
        Column(
            "per doubling of N",
            lambda v: f"{v[0]:+.1%} ({v[1]:+.1%} to {v[2]:+.1%})",
            parts=("per doubling of N", "per doubling of N, low", "per doubling of N, high"),
        ),
        Column("drift per doubling of T", _percent),
        _factor_column("predicted at the largest"),
        Column("found", lambda v: f"{v:.2f} x"),
        Column("loss difference", lambda v: f"{v:+.4f}"),
        _factor_column("FLOPs"),
        _factor_column("seconds"),
        *items,
        Column("sizes"),
        Column("runs"),
        Column("hours", lambda v: f"{v:.3g}"),
        Column("tuning runs"),
    ]
    unit = loss_unit(verdict.measured for verdict in verdicts.values())
    return Table(
        "verdict",
        "Verdict",
        columns,
        [_verdict_row(verdict, asked, other) for verdict in verdicts.values()],
        f"Factors are token speed-ups against {baseline}, with {levels_text(verdicts)} intervals"
        + (f" ({format_level(LEVEL)} where predicted and of items)" if other else "")
        + ": above 1 the variant needs fewer "
        "tokens. Middle: on the line in the middle of the sizes (ln N). Loss difference: at the largest size "
        f"and its longest common budget, in {unit}, below 0 is better. FLOPs and seconds: the factor at the "
        "largest size in that currency; FLOPs of zoo's runs are those of matrix products and attention, "
        "also in zoo's own optimizers. "
        + ("Items: the difference of the mean scores there, above 0 is better. " if asked else "")
        + ("Of several outcomes they are the first that the table names. " if several else "")
        + "Sizes by themselves, trend, drift and predictions are description; "
        "the word is judged.",
        drop=(
            *("tuning runs", "hours", "runs", "sizes", "found", "predicted at the largest"),
            *("drift per doubling of T", *(column.title for column in items)),
            *("seconds", "FLOPs", "per doubling of N", "middle"),
        ),
    )


def _verdict_row(verdict: ScaleVerdict, asked: bool, other: bool) -> list[object]:
    """The row of a variant, with its scores of items and the level of its intervals if there are columns."""
    measurement, line, largest = verdict.measured, verdict.line, verdict.largest
    costs = {cost.name: factor(cost.ln_c, cost.half95) for cost in measurement.costs}
    drifts = [size.drift for size in measurement.usable if size.drift is not None]
    value = None if largest is None else factor(largest.ln_c, measurement.half_alone())
    compared = [run for pair in measurement.pairs.values() for side in pair.sides for run in side.compared]
    seconds = [run.seconds for run in compared if run.seconds is not None]
    tuned = [side for pair in measurement.pairs.values() for side in pair.sides if side.tuned]
    return [
        verdict.name,
        verdict.word if verdict.word == "undecided" else word_text(verdict),  # the factor has a column
        *([measurement.level] if other else []),
        line and estimated(line.middle),
        value if line is None else estimated(line.largest),
        line and _per_doubling(line.slope),
        math.expm1(float(np.mean(drifts)) * DOUBLING) if drifts else None,
        verdict.back_test and estimated(verdict.back_test),
        math.exp(largest.ln_c) if largest is not None and verdict.back_test else None,
        None if largest is None else _loss_difference(measurement.pairs[largest.params]),
        costs.get("flops"),
        costs.get("seconds"),
        *([measurement.items and with_interval(measurement.items)] if asked else []),
        len(measurement.usable),
        len(compared),
        sum(seconds) / 3600 if seconds and len(seconds) == len(compared) else None,
        sum(side.tuning_runs for side in tuned),
    ]


def _loss_difference(pair: SizePair) -> float | None:
    """The loss of the variant less that of the baseline at the longest common budget."""
    ours, theirs = pair.cells
    tokens = common_budget(*({tokens for tokens, _ in side} for side in (ours, theirs)))
    if tokens is None:
        return None
    own, other = (
        np.mean([loss for (t, _), loss in side.items() if t == budget])
        for side, budget in zip((ours, theirs), tokens, strict=True)
    )
    return float(other - own)


def size_table(verdicts: Mapping[str, ScaleVerdict]) -> Table:
    """A table with one row per variant and size; it is descriptive, and no verdict depends on it."""
    columns = [
        Column("variant", align_right=False),
        Column("size", format_count),
        _factor_column("c"),
        Column("ln c", lambda v: f"{v:+.4f}"),
        Column("se", lambda v: f"{v:.4f}"),
        Column("drift per doubling of T", _percent),
        Column("p", format_p),
        Column("seeds"),
        Column("budgets"),
        Column("tokens per parameter", lambda v: f"{v:.3g}"),
        Column("loss difference", lambda v: f"{v:+.4f}"),
        Column("used", align_right=False),
    ]
    rows = [row for verdict in verdicts.values() for row in _size_rows(verdict)]
    note = (
        f"c by deleting one seed at a time: {_usual_interval(verdicts)} of this size alone, without the "
        "error of tuning, which no test over seeds sees."
    )
    return Table("sizes", "Every size by itself", columns, rows, note)


def _usual_interval(verdicts: Mapping[str, ScaleVerdict], article: str = "") -> str:
    """An interval of the usual level, which is named where other intervals have another one."""
    if other_levels(verdicts):
        return f"{article or 'a'} {format_level(LEVEL)} interval"
    return f"{article or 'an'} interval"


def _size_rows(verdict: ScaleVerdict) -> Iterator[list[object]]:
    measurement = verdict.measured
    for size in measurement.sizes:
        pair = measurement.pairs[size.params]
        budgets = {run.tokens for run in pair.baseline.compared}
        yield [
            verdict.name,
            size.params,
            factor(size.ln_c, size.half_width()),
            size.ln_c,
            size.se,
            None if size.drift is None else math.expm1(size.drift * DOUBLING),
            size.p_value,
            size.seeds,
            len(budgets),
            max(budgets) / size.params,
            _loss_difference(pair),
            f"no: {size.problem}" if size.problem else "yes",
        ]


def law_table(verdicts: Mapping[str, ScaleVerdict]) -> Table:
    """A table of the second opinion, with one row per variant."""
    columns = [
        Column("variant", align_right=False),
        _factor_column("c at the largest size"),
        Column("ln c per e-fold of N", lambda v: f"{v:+.4f}"),
        Column("E", lambda v: f"{v:.3f}"),
        Column("a", lambda v: f"{v:.3f}"),
        Column("b", lambda v: f"{v:.3f}"),
    ]
    laws = {name: verdict.measured.law for name, verdict in verdicts.items()}
    rows: list[list[object]] = [
        [name, factor(law.ln_c, law.half95), law.slope, law.irreducible, law.a, law.b]
        for name, law in laws.items()
        if law is not None
    ]
    note = (
        f"L = E + A N^-a + B (c T)^-b, fitted to both sides, {_usual_interval(verdicts, 'the')} by deleting "
        "one size at a time. E, a and b are nuisance: they are not compared between variants."
    )
    return Table("law", "Second opinion: one law for all sizes", columns, rows, note)


def tables(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> list[Table]:
    """All tables that have rows."""
    measured = {name: verdict.measured for name, verdict in verdicts.items()}
    every = [
        verdict_table(verdicts, baseline),
        items_table(verdicts, baseline),
        size_table(verdicts),
        tuning_table(measured, baseline),
        noise_table(measured),
        law_table(verdicts),
    ]
    return [table for table in every if table.rows]
