"""Up to which rate a method trains deep and narrow models: stable rates, spikes, deviation over seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from benchmarks.scale.chapters import Chapter, status
from benchmarks.scale.questions import Question
from zoo.ablate.progress import LadderProgress
from zoo.ablate.scale.runs import FinishedRun, format_count
from zoo.ablate.table import Column, Table
from zoo.report.plot import Plot, Series, View, legible_ticks
from zoo.report.section import Section

LOST = 1.0
"""Nats above the lowest mean loss from which a run counts as one that has not trained."""
METHOD, RATE = "method", "optimizer.lr"
"""The axes of the sweep."""

Runs = Mapping[float, Sequence[FinishedRun]]
"""The runs of all seeds by rate, ascending."""


def stability(question: Question, state: LadderProgress) -> Chapter:
    """The chapter of a ladder with one budget, whose axes are methods and rates."""
    runs = status(state)
    sweep = state.sweep
    grouped = dict(by_method(state))
    sections = [Section("Stability", [_table(grouped), _plot(grouped)])] if grouped else []
    return Chapter(
        question.key,
        question.title,
        sweep.description or "",
        runs,
        state.complete,
        sections=sections,
        styled=tuple(dict.fromkeys(method for _, method in grouped)),
        picture="rates" if grouped else "",
    )


def by_method(state: LadderProgress) -> Iterator[tuple[tuple[float, str], Runs]]:
    """The rates, of a size and a method, whose seeds have all ended."""
    levels = {variant.name: variant.settings for variant in state.sweep.variants}
    for size in state.sweep.ladder:
        grouped: dict[str, dict[float, list[FinishedRun]]] = defaultdict(lambda: defaultdict(list))
        for line in state.lines:
            if line.run.size == size.params:
                settings = levels[line.run.variant]
                grouped[settings[METHOD]][float(settings[RATE])].append(line.run)
        for method, rates in grouped.items():
            whole = {r: runs for r, runs in sorted(rates.items()) if len(runs) == len(size.seeds)}
            if whole:
                yield (float(size.params), method), whole


def best_rate(rates: Runs) -> float:
    """The rate with the lowest mean loss."""
    return min(rates, key=lambda rate: _mean(rates[rate]))


def largest_stable(rates: Runs) -> float | None:
    """The largest rate up to which, from the best one on, every run has trained; None if no rate has a mean.

    Rates below the best one are not asked: there a run may be far from the lowest loss because it is slow.
    """
    best = best_rate(rates)
    limit = _mean(rates[best]) + LOST
    stable = None
    for rate, runs in rates.items():
        if rate < best:
            continue
        if not all(run.loss <= limit < math.inf for run in runs):
            break
        stable = rate
    return stable


def _at_least(number: float, is_bound: bool) -> str:
    return f"{'≥ ' * is_bound}{number:.3g}"


def _mean(runs: Sequence[FinishedRun]) -> float:
    return fmean(run.loss for run in runs)


def _table(grouped: Mapping[tuple[float, str], Runs]) -> Table:
    columns = [
        Column("size", format_count),
        Column("method", align_right=False),
        Column("rates tried"),
        Column("largest stable rate"),
        Column("best rate", lambda v: f"{v:.3g}"),
        Column("stable / best"),
        Column("loss there", lambda v: f"{v:.4f}"),
        Column("sd over seeds", lambda v: f"{v:.4f}"),
        Column("spikes per run there", lambda v: f"{v:.2g}"),
        Column("spikes per run, all rates", lambda v: f"{v:.2g}"),
    ]
    rows: list[list[object]] = []
    for (size, method), rates in grouped.items():
        best = best_rate(rates)
        losses = [run.loss for run in rates[best]]
        every = [run for runs in rates.values() for run in runs]
        stable = largest_stable(rates)
        is_bound = stable == max(rates)
        rows.append(
            [
                size,
                method,
                len(rates),
                stable and _at_least(stable, is_bound),
                best,
                stable and _at_least(stable / best, is_bound),
                _mean(rates[best]),
                stdev(losses) if len(losses) > 1 and math.isfinite(sum(losses)) else None,
                fmean(run.spikes for run in rates[best]),
                fmean(run.spikes for run in every),
            ]
        )
    note = (
        f"Largest stable rate: from the best rate up to it every run ended within {LOST:g} nat of the lowest "
        "mean loss of its method and size; ≥: no larger rate was tried. Methods whose weights are of other "
        "sizes train at other rates, so that the largest stable rate is to be read over the best one. Rates "
        "whose seeds have not all ended are left out. These are descriptions: no word is given."
    )
    return Table("stability", "Stability", columns, rows, note, of_variants=False)


def _plot(grouped: Mapping[tuple[float, str], Runs]) -> Plot:
    views = []
    for size in dict.fromkeys(size for size, _ in grouped):
        series = []
        rates = {method: of for (n, method), of in grouped.items() if n == size}
        for method, of_rate in rates.items():
            finite = {rate: _mean(runs) for rate, runs in of_rate.items() if math.isfinite(_mean(runs))}
            series.append(Series(method, method, list(finite), list(finite.values())))
        ticks = legible_ticks(rate for of_rate in rates.values() for rate in of_rate)
        views.append(
            View(
                format_count(size),
                "learning rate",
                "final validation loss, nats",
                series,
                log_x=True,
                ticks=ticks,
            )
        )
    return Plot(
        "rates",
        "Loss over the rate, deep and narrow",
        views,
        "Points: means over seeds; a rate at which a run diverged has none.",
        panels=True,
    )
