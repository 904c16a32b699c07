"""A verdict across scale in words, as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from zoo.ablate.scale.line import Estimate, Prediction
from zoo.ablate.scale.verdict import ScaleVerdict


def sentence(verdict: ScaleVerdict, baseline: str, margin: float | None = None) -> str:
    """What a reader should remember of a variant."""
    line, name = verdict.line, verdict.name
    if verdict.word == "not comparable":
        reasons = "; ".join(f"{_size(left.params)}: {left.reason}" for left in verdict.left_out)
        return f"{name}: not comparable with {baseline} ({reasons})."
    if verdict.word == "undecided":
        shown = f"; this study would have shown {verdict.detectable:.2f} x" if verdict.detectable else ""
        return f"{name}: undecided against {baseline}{shown}."
    if verdict.word == "equal":
        assert margin is not None  # the word is only given for a margin
        return f"{name}: equal to {baseline} within {margin:g} x."
    more, sign = ("fewer", 1) if verdict.word == "faster" else ("more", -1)
    if line is None:
        size = verdict.sizes[-1]
        return (
            f"{name}: {verdict.word} than {baseline}. At {_size(size.params)}, the only size judged, it "
            f"needs {_factor(sign * size.ln_c, size.half_width())} {more} tokens."
        )
    largest_size = _size(verdict.sizes[-1].params)
    largest = f"at {largest_size} {_factor(sign * line.largest.estimate, line.largest.half95)}"
    if not verdict.at_largest:
        largest = f"not shown at {largest_size}"
    middle_size = _size(math.exp(float(line.x.mean())))
    middle = _factor(sign * line.middle.estimate, line.middle.half95)
    parts = [
        f"{name}: {verdict.word} than {baseline}. In the middle of the sizes ({middle_size}) it needs "
        f"{middle} {more} tokens; {largest}.",
        _trend(verdict),
    ]
    if verdict.predicted is not None:
        twice = _size(2 * verdict.sizes[-1].params)
        parts.append(
            f"At {twice} expect {_factor(sign * verdict.predicted.estimate, verdict.predicted.half95)}."
        )
    parts += [f"In {cost.name}: {_factor(cost.ln_c, cost.half95)}." for cost in verdict.costs]
    return " ".join(part for part in parts if part)


def _trend(verdict: ScaleVerdict) -> str:
    if verdict.line is None or verdict.trend is None:
        return ""
    slope = verdict.line.slope
    low, high = (math.expm1((slope.estimate + k * slope.half95) * math.log(2)) for k in (-1, 1))
    what = "gain" if verdict.word == "faster" else "disadvantage"
    begin = "The trend is open" if verdict.trend == "trend open" else f"The {what} {verdict.trend}"
    change = math.expm1(slope.estimate * math.log(2))
    return (
        f"{begin}: the factor changes by {change:+.1%} per doubling of the size ({low:+.1%} to {high:+.1%})."
    )


def table(verdicts: Mapping[str, ScaleVerdict]) -> Table:
    """One row per variant, for the terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("variant", "word", "middle", "largest", "per doubling of N", "drift per doubling of T"):
        shown.add_column(column, justify="left" if column in ("variant", "word") else "right")
    for column in ("predicted, found", "sizes"):
        shown.add_column(column, justify="right")
    for name, verdict in verdicts.items():
        line = verdict.line
        drifts = [size.drift for size in verdict.sizes]
        test = verdict.back_test
        shown.add_row(
            name,
            verdict.word,
            "" if line is None else _factor(line.middle.estimate, line.middle.half95),
            _largest(verdict),
            "" if line is None else f"{math.expm1(line.slope.estimate * math.log(2)):+.1%}",
            f"{math.expm1(sum(drifts) / len(drifts) * math.log(2)):+.1%}" if drifts else "",
            "" if test is None else f"{math.exp(test.estimate):.2f}, {math.exp(verdict.sizes[-1].ln_c):.2f}",
            str(len(verdict.sizes)),
        )
    return shown


def _largest(verdict: ScaleVerdict) -> str:
    if verdict.line is not None:
        return _factor(verdict.line.largest.estimate, verdict.line.largest.half95)
    if not verdict.sizes:
        return ""
    return _factor(verdict.sizes[-1].ln_c, verdict.sizes[-1].half_width())


def _factor(ln_c: float, half: float | None) -> str:
    """1.20 x (1.10-1.31)."""
    if half is None:
        return f"{math.exp(ln_c):.2f} x"
    return f"{math.exp(ln_c):.2f} x ({math.exp(ln_c - half):.2f}-{math.exp(ln_c + half):.2f})"


def _size(params: float) -> str:
    """6.4M."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if params >= 0.9995 * limit:
            return f"{params / limit:.3g}{unit}"
    return f"{params:.3g}"


def as_json(
    verdicts: Mapping[str, ScaleVerdict], baseline: str, *, margin: float | None, alpha: float
) -> str:
    """For programs and agents; ln c throughout, natural logarithms."""
    plain = {
        "baseline": baseline,
        "alpha": alpha,
        "margin": margin,
        "variants": {name: _plain(verdict, baseline, margin) for name, verdict in verdicts.items()},
    }
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def _plain(verdict: ScaleVerdict, baseline: str, margin: float | None) -> dict[str, Any]:
    line, test = verdict.line, verdict.back_test
    return {
        "word": verdict.word,
        "at_largest": verdict.at_largest,
        "trend": verdict.trend,
        "sentence": sentence(verdict, baseline, margin),
        "sizes": [
            {
                "params": size.params,
                "ln_c": size.ln_c,
                "se": size.se,
                "half95": size.half_width(),
                "drift": size.drift,
                "seeds": size.seeds,
                "comparable": size.comparable,
            }
            for size in verdict.sizes
        ],
        "left_out": [{"params": left.params, "reason": left.reason} for left in verdict.left_out],
        "line": None
        if line is None
        else {
            "middle": _estimate(line.middle),
            "largest": _estimate(line.largest),
            "slope": _estimate(line.slope),
            "prediction_2x": _prediction(verdict.predicted),
        },
        "back_test": None
        if test is None
        else {
            "predicted": test.estimate,
            "half95": test.half95,
            "found": verdict.sizes[-1].ln_c,
            "hit": test.holds(verdict.sizes[-1].ln_c),
        },
        "law": None
        if verdict.law is None
        else {
            "E": verdict.law.irreducible,
            "a": verdict.law.a,
            "b": verdict.law.b,
            "ln_c": verdict.law.ln_c,
            "half95": verdict.law.half95,
            "slope": verdict.law.slope,
        },
        "costs": {c.name: {"ln_c": c.ln_c, "half95": c.half95} for c in verdict.costs},
        "items": None
        if verdict.items is None
        else {"difference": verdict.items.difference, "se": verdict.items.se, "df": verdict.items.df},
        "detectable": verdict.detectable,
        "warnings": list(verdict.warnings),
    }


def _estimate(value: Estimate) -> dict[str, float]:
    return {"estimate": value.estimate, "half95": value.half95, "half90": value.half_width(0.9)}


def _prediction(value: Prediction | None) -> dict[str, float] | None:
    return None if value is None else {"estimate": value.estimate, "half95": value.half95}


def lines(verdicts: Mapping[str, ScaleVerdict], baseline: str, margin: float | None) -> Sequence[str]:
    """Sentences and warnings of all variants, for the terminal."""
    shown = []
    for verdict in verdicts.values():
        shown.append(sentence(verdict, baseline, margin))
        shown += [f"  left out: {_size(left.params)}: {left.reason}" for left in verdict.left_out]
        shown += [f"  note: {warning}" for warning in verdict.warnings]
    return shown
