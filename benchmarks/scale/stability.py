"""Up to which rate a method trains deep and narrow models: stable rates, spikes, deviation over seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean, stdev

from benchmarks.scale.chapters import Chapter, Row, about_runs, open_row, scale_text
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

MULTIPLES = (1.0, 4.0, 16.0)
"""Of the best rate, at which spikes are counted."""


@dataclass(frozen=True)
class Searched:
    """A method at one size, at all of its rates whose seeds have ended.

    Attributes:
        size: the number of parameters.
        method: the value of the axis `METHOD`.
        rates: the runs of all seeds by rate, ascending.
    """

    size: float
    method: str
    rates: Mapping[float, Sequence[FinishedRun]]

    @property
    def best(self) -> float:
        """The rate with the lowest mean loss."""
        return min(self.rates, key=self.loss)

    def loss(self, rate: float) -> float:
        """The mean final loss of the runs at a rate, in nats."""
        return fmean(run.loss for run in self.rates[rate])

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the final losses at the best rate; None if it is not finite."""
        losses = [run.loss for run in self.rates[self.best]]
        return stdev(losses) if len(losses) > 1 and all(map(math.isfinite, losses)) else None

    @cached_property
    def largest_stable(self) -> float | None:
        """The largest rate up to which, from the best one on, every run has trained; None if there is none.

        Rates below the best one do not count: a run there may be far from the lowest loss as it is slow.
        """
        limit = self.loss(self.best) + LOST
        stable = None
        for rate, runs in self.rates.items():
            if rate < self.best:
                continue
            if not all(run.loss <= limit < math.inf for run in runs):
                break
            stable = rate
        return stable

    @property
    def is_bound(self) -> bool:
        """Whether the largest stable rate is the largest that was tried, so that larger ones may be."""
        return self.largest_stable == max(self.rates)

    @property
    def reach(self) -> float | None:
        """The largest stable rate over the best one; None if there is none."""
        return None if self.largest_stable is None else self.largest_stable / self.best

    def spikes(self, multiple: float) -> float | None:
        """The mean number of spikes of a run at a multiple of the best rate; None if it was not tried."""
        wanted = multiple * self.best
        runs = next((runs for rate, runs in self.rates.items() if math.isclose(rate, wanted)), None)
        return fmean(run.spikes for run in runs) if runs else None


def stability(question: Question, state: LadderProgress) -> Chapter:
    """The chapter of a ladder with one budget, whose axes are methods and rates."""
    sweep = state.sweep
    found = list(searches(state))
    sections = [Section("Stability", [_table(found), _plot(found)])] if found else []
    return Chapter(
        question.key,
        question.title,
        sweep.description or "",
        about_runs(question, state),
        state.complete,
        state.ended > 0,
        tuple(_rows(question, state, found)),
        tuple(_sentences(found, _baseline(state))) if state.complete else (),
        sections=sections,
        styled=tuple(dict.fromkeys(one.method for one in found)),
        picture="rates" if found else "",
    )


def searches(state: LadderProgress) -> Iterator[Searched]:
    """Every method at every size, as far as all seeds of a rate have ended."""
    levels = {variant.name: variant.settings for variant in state.sweep.variants}
    for size in state.sweep.ladder:
        grouped: dict[str, dict[float, list[FinishedRun]]] = {
            settings[METHOD]: defaultdict(list) for settings in levels.values()
        }
        for line in state.lines:
            if line.run.size == size.params:
                settings = levels[line.run.variant]
                grouped[settings[METHOD]][float(settings[RATE])].append(line.run)
        for method, rates in grouped.items():
            whole = {r: runs for r, runs in sorted(rates.items()) if len(runs) == len(size.seeds)}
            if whole:
                yield Searched(float(size.params), method, whole)


def _baseline(state: LadderProgress) -> str:
    """The method of the baseline."""
    return next(v.settings[METHOD] for v in state.sweep.variants if v.name == state.sweep.baseline)


def _rows(question: Question, state: LadderProgress, found: Sequence[Searched]) -> Iterator[Row]:
    """A row per claim, which has no word."""
    baseline = _baseline(state)
    for claim in question.claims:
        sides = [[one for one in found if one.method == method] for method in (claim.variant, baseline)]
        if not state.complete or not all(sides):
            yield open_row(claim, state)
            continue
        own = " and ".join(f"{_bounded(one, one.reach)} x ({format_count(one.size)})" for one in sides[0])
        other = " and ".join(f"{_bounded(one, one.reach)} x" for one in sides[1])
        here = f"rates up to {own} the best one; {baseline} {other}"
        runs = [run for one in chain(*sides) for of_rate in one.rates.values() for run in of_rate]
        scale = scale_text([one.size for one in sides[0]], [run.tokens for run in runs])
        yield Row(claim.text, claim.paper, here, "no word: described below", scale, looked_at=False)


def _sentences(found: Sequence[Searched], baseline: str) -> Iterator[str]:
    """A description of every method at every size."""
    for one in found:
        name = f"{METHOD}={one.method}" + ", the baseline," * (one.method == baseline)
        if one.reach is None:
            yield f"At {format_count(one.size)}, {name} trains with no rate."
            continue
        counts = [
            f"{spikes:.2g} spikes at {multiple:g} x" + ", where not all runs train" * (multiple > one.reach)
            for multiple in MULTIPLES
            if (spikes := one.spikes(multiple)) is not None
        ]
        bound = "at least " * one.is_bound
        yield (
            f"At {format_count(one.size)}, {name} ends at {one.loss(one.best):.3f} nats with its best rate, "
            f"{one.best:.3g}. It trains with rates up to {bound}{one.reach:.3g} times as high. A run has "
            f"{'; '.join(counts)}."
        )


def _bounded(one: Searched, value: float | None) -> str:
    """The largest stable rate, or its multiple of the best one, with "≥" if it is a bound."""
    return "–" if value is None else f"{'≥ ' * one.is_bound}{value:.3g}"


def _table(found: Sequence[Searched]) -> Table:
    columns = [
        Column("size", format_count),
        Column("method", align_right=False),
        Column("rates tried"),
        Column("largest stable rate"),
        Column("best rate", lambda v: f"{v:.3g}"),
        Column("stable / best"),
        Column("loss there", lambda v: f"{v:.4f}"),
        Column("sd over seeds", lambda v: f"{v:.4f}"),
        *(Column(f"spikes per run at {multiple:g} x", lambda v: f"{v:.2g}") for multiple in MULTIPLES),
    ]
    rows: list[list[object]] = [
        [
            one.size,
            one.method,
            len(one.rates),
            _bounded(one, one.largest_stable),
            one.best,
            _bounded(one, one.reach),
            one.loss(one.best),
            one.deviation,
            *map(one.spikes, MULTIPLES),
        ]
        for one in found
    ]
    note = (
        f"Largest stable rate: from the best rate up to it every run ended within {LOST:g} nat of the lowest "
        "mean loss of its method and size; ≥: no larger rate was tried. Methods whose weights are of other "
        "sizes train at other rates, so that the largest stable rate is to be read over the best one, and "
        "spikes are counted at multiples of the best one. Rates whose seeds have not all ended are left out. "
        "These are descriptions: no word is given."
    )
    return Table("stability", "Stability", columns, rows, note, of_variants=False)


def _plot(found: Sequence[Searched]) -> Plot:
    views = []
    for size in dict.fromkeys(one.size for one in found):
        here = [one for one in found if one.size == size]
        series = []
        for one in here:
            finite = [rate for rate in one.rates if math.isfinite(one.loss(rate))]
            series.append(Series(one.method, one.method, finite, list(map(one.loss, finite))))
        views.append(
            View(
                format_count(size),
                "learning rate",
                "final validation loss, nats",
                series,
                log_x=True,
                ticks=legible_ticks(rate for one in here for rate in one.rates),
            )
        )
    return Plot(
        "rates",
        "Loss over the rate, deep and narrow",
        views,
        "Points: means over seeds; a rate at which a run diverged has none.",
        panels=True,
    )
