"""The plots of a verdict across scale: loss over tokens, the factor over the size, loss over the rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from zoo.ablate.scale.factors import estimated, factor
from zoo.ablate.scale.measure import SizePair, loss_unit
from zoo.ablate.scale.presentation import levels_text, other_levels
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.speedup import SizeSpeedup
from zoo.ablate.scale.tuned import TunedSize
from zoo.ablate.scale.tuning import WINDOW
from zoo.ablate.scale.verdict import ScaleVerdict
from zoo.ablate.statistics import LEVEL, format_level
from zoo.report.plot import Arrow, Plot, Series, View, legible_ticks
from zoo.report.tuning_curves import ladder_tuning_curves

STEPS = 60
"""Number of points of a drawn curve."""
FARTHEST = 2.0
"""Factor on the largest size up to which the line is drawn, but no farther than the measured range."""
BESIDE = 1.04
"""Factor on the largest size by which each back-test is moved, so that all bars are visible."""
APART_BY = 1.015
"""Factor between the places of two variants' points of one size, for the same reason."""
WIDEST = 2.0
"""Factor on the smallest and the largest estimate beyond which intervals are cut off, with an arrow."""
DIGITS = 5
"""Significant digits of the coordinates of a drawn line. With all digits, errors of rounding, which differ
between processors, would decide which way a straight line bends at each point, and change pixels slightly."""
CHOSEN = "chosen rates"
"""The view of the rates of the comparison over the sizes."""


def ladder_plots(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> Iterator[Plot]:
    """Yield the plots for which there are data."""
    loss = f"final validation loss, {loss_unit(verdict.measured for verdict in verdicts.values())}"
    for number, verdict in enumerate(verdicts.values(), 1):
        views = [_ladder(verdict, size, baseline, loss) for size in verdict.measured.sizes]
        if views:
            yield Plot(
                "ladder" if number == 1 else f"ladder-{number}",
                f"Loss over tokens: {verdict.name} and {baseline}",
                views,
                "Every point is a run, trained to the end of its own schedule. Line: the curve that both "
                "sides "
                f"share, as {baseline} follows it. Arrow: from the tokens of {verdict.name} to those that "
                f"{baseline} needs for the same loss, ln c long.",
                panels=True,
            )
    if any(verdict.measured.sizes for verdict in verdicts.values()):
        yield _across_sizes(verdicts)
    sides = _sides(verdicts, baseline)
    tuned = [side for of_side in sides.values() for side in of_side.values()]
    rates = _rate_views(sides, loss)
    if rates:
        yield Plot(
            "rates",
            "Tuning of the learning rate",
            rates,
            "Points: mean loss of every rate that was tried; line: the parabola through the best one and its "
            "neighbours; arrow: to the rate of the comparison."
            + " Last: that rate over the size." * (rates[-1].name == CHOSEN)
            + " Of random points the parabola is fitted by least squares." * any(s.drawn for s in tuned)
            + " Rates that were tried at another value of the second key are not drawn."
            * any(s.second_tried and not s.drawn for s in tuned),
            panels=True,
        )
    yield from ladder_tuning_curves(sides, loss)


def _ladder(verdict: ScaleVerdict, size: SizeSpeedup, baseline: str, loss: str) -> View:
    pair = verdict.measured.pairs[size.params]
    sides = [
        Series(
            name,
            name,
            [run.tokens for run in side.compared],
            [run.loss for run in side.compared],
            points=True,
        )
        for name, side in zip((baseline, verdict.name), pair.sides, strict=True)
    ]
    tokens = [run.tokens for side in pair.sides for run in side.compared]
    least, most = min(tokens), max(tokens) * math.exp(max(0.0, min(size.ln_c, size.limits[1])))
    x = np.geomspace(least, most, STEPS)
    y = np.exp(np.polyval(size.curve, np.log(x) - size.centre))
    curve = Series("shared curve", baseline, list(x), list(y), in_legend=False)
    middle = math.exp(size.centre + size.middle)
    height = math.exp(float(np.polyval(size.curve, size.middle + size.ln_c)))
    arrow = Arrow(verdict.name, middle, middle * math.exp(size.ln_c), height)
    name = f"{format_count(size.params)}: {math.exp(size.ln_c):.2f} x"
    budgets = sorted({run.tokens for run in pair.baseline.compared})
    return View(
        name, "training tokens", loss, [curve, *sides], log_x=True, log_y=True, ticks=budgets, arrows=[arrow]
    )


def _across_sizes(verdicts: Mapping[str, ScaleVerdict]) -> Plot:
    usual = format_level(LEVEL)
    series: list[Series] = []
    sizes: set[float] = set()
    for number, verdict in enumerate(verdicts.values(), 1):
        sizes |= {size.params for size in verdict.measured.usable}
        of_points = APART_BY ** (number - (len(verdicts) + 1) / 2)
        series += _factors(verdict, of_points, of_points * BESIDE**number)
    return Plot(
        "across-sizes",
        "Token speed-up over the size",
        [
            View(
                "factor",
                "parameters",
                "token speed-up",
                series,
                log_x=True,
                log_y=True,
                ticks=sorted(sizes) if len(sizes) < 9 else (),
                limits=_limits(series),
            )
        ],
        f"Dotted: 1 x, no difference. Point: a size by itself with its {usual} interval, which is without "
        f"the error of tuning. Line and band: across the sizes, {levels_text(verdicts)}. The wider bar at "
        "the largest size is what the smaller ones predicted of it. Hatched: beyond the largest size, a "
        "prediction if the trend stays straight. An arrow stands for an interval that goes on."
        + (f" Both predictions: {usual}." if other_levels(verdicts) else ""),
        one_line=True,
    )


def _limits(series: Sequence[Series]) -> tuple[float, float]:
    """The ends of an axis that shows all estimates, and intervals up to `WIDEST` from them."""
    estimates = [1.0, *(float(y) for of_series in series for y in of_series.y)]
    least = max(min([*estimates, *(y for s in series for y in s.low)]), min(estimates) / WIDEST)
    most = min(max([*estimates, *(y for s in series for y in s.high)]), max(estimates) * WIDEST)
    margin = max(1.01, (most / least) ** 0.05)  # also where everything is the same
    return least / margin, most * margin


def _factors(verdict: ScaleVerdict, of_points: float, of_back_test: float) -> Iterator[Series]:
    """Yield what is drawn of a verdict.

    Args:
        verdict: the verdict.
        of_points: the factor on the sizes at which their points are drawn.
        of_back_test: the factor on the largest size at which the back-test is drawn.
    """
    name, line, usable = verdict.name, verdict.line, verdict.measured.usable
    if not usable:
        return
    if line is not None:
        least, most = float(line.x.min()), float(line.x.max())
        inside = np.linspace(least, most, STEPS)
        band = [line.at(x) for x in inside]
        yield _band(name, list(inside), [(v.estimate, v.half95) for v in band], beyond=False)
        if verdict.predicted is not None:
            outside = np.linspace(most, most + min(math.log(FARTHEST), most - least), STEPS)
            predictions = [line.predict(x) for x in outside]
            yield _band(name, list(outside), [(v.estimate, v.half95) for v in predictions], beyond=True)
    if verdict.back_test is not None:
        predicted, low, high = estimated(verdict.back_test)
        yield Series(
            f"{name}, back-test",
            name,
            [usable[-1].params],
            [predicted],
            [low],
            [high],
            points=True,
            in_legend=False,
            beside=of_back_test,
        )
    factors = [factor(size.ln_c, size.half_width() or 0.0) for size in usable]
    columns = [list(column) for column in zip(*factors, strict=True)]
    params = [size.params for size in usable]
    yield Series(name, name, params, columns[0], columns[1], columns[2], points=True, beside=of_points)


def _band(
    name: str, ln_params: Sequence[float], values: Sequence[tuple[float, float]], beyond: bool
) -> Series:
    low, high = ([_drawn(v + sign * half) for v, half in values] for sign in (-1, 1))
    x, y = [_drawn(value) for value in ln_params], [_drawn(v) for v, _ in values]
    return Series(name, name, x, y, low, high, beyond=beyond, in_legend=False)


def _drawn(ln_value: float) -> float:
    """A value with `DIGITS` significant digits, from its logarithm."""
    return float(f"{math.exp(ln_value):.{DIGITS}g}")


def _sides(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> dict[str, dict[float, TunedSize]]:
    """The runs of every variant by size."""
    sides: dict[str, dict[float, TunedSize]] = {}
    for verdict in verdicts.values():
        pairs: Mapping[float, SizePair] = verdict.measured.pairs
        for k, name in enumerate((baseline, verdict.name)):
            sides.setdefault(name, {}).update({n: pair.sides[k] for n, pair in pairs.items()})
    return sides


def _rate_views(sides: Mapping[str, Mapping[float, TunedSize]], loss: str) -> list[View]:
    """A view for each size at which rates were tried, and one of the chosen rates over the size."""
    sizes = sorted({n for of_side in sides.values() for n, side in of_side.items() if side.tuned})
    views = []
    for params in sizes:
        series: list[Series] = []
        arrows: list[Arrow] = []
        for name, of_side in sides.items():
            if params in of_side and of_side[params].tuned:
                _add_tuning(name, of_side[params], series, arrows)
        ticks = legible_ticks(
            rate for of_side in sides.values() if params in of_side for rate in of_side[params].tried
        )
        view = View(format_count(params), "learning rate", loss, series, log_x=True, arrows=arrows)
        views.append(replace(view, ticks=ticks))
    if len(sizes) > 1:
        chosen = [
            Series(name, name, list(rates), list(rates.values()))
            for name, of_side in sides.items()
            if len(rates := {n: side.rate for n, side in sorted(of_side.items()) if side.rate is not None})
            > 1
        ]
        views.append(View(CHOSEN, "parameters", "learning rate", chosen, log_x=True, log_y=True, ticks=sizes))
    return views


def _add_tuning(name: str, side: TunedSize, series: list[Series], arrows: list[Arrow]) -> None:
    finite = {rate: loss for rate, loss in side.tried.items() if math.isfinite(loss)}
    series.append(Series(name, name, list(finite), list(finite.values()), points=True))
    parabola = side.parabola
    if parabola is None:
        return
    rates = sorted(side.tried)
    best = rates.index(min(rates, key=lambda rate: side.tried[rate]))
    ends = rates[best - 1], rates[best + 1]
    if side.drawn is not None:
        window = math.exp(WINDOW)
        ends = max(rates[0], rates[best] / window), min(rates[-1], rates[best] * window)
    x = np.geomspace(*ends, STEPS)
    y = parabola.loss + parabola.curvature * (np.log(x) - parabola.ln_rate) ** 2
    series.append(Series(name, name, list(x), list(y), in_legend=False))
    if side.rate is not None and side.rate != rates[best]:
        arrows.append(Arrow(name, rates[best], side.rate, parabola.loss))
