"""Q5, which rates transfer: the drift table and its picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.drift.cells import AXES, Part, every_side
from benchmarks.drift.lines import Table, check_settings
from benchmarks.drift.rows import Row, drift_table
from benchmarks.scale.chapters import NO_RUN, Chapter
from benchmarks.scale.questions import Question
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section

QUESTION = (
    "How far does the best rate move from the smallest to the largest size of an axis, in octaves? Does a "
    "rule stop it? The models read bytes, in runs of 120 steps, or of up to 960 where the horizon grows."
)
FREE = "none"
"""The name of no rule."""
NEAR = 0.5
"""Octaves within which a rate counts as the same. So far from the best one it costs 3 % of the tokens, by the
curvature that verdicts assume (.24 ln tokens per (ln rate)²)."""
SHOWN = 3.0
"""Octaves on both sides of zero that the picture has room for: a factor of 8."""


def drifting(question: Question, file: Path) -> Chapter:
    """The chapter of the drift table.

    Args:
        question: the question.
        file: the lines of `benchmarks.drift`.

    Raises:
        SystemExit: a line has other settings than the script.
    """
    part, lines = Part(every_side()), Table.read(file)
    check_settings(lines, part)
    known = drift_table(lines, part)
    drifts = [row for row in known.rows if row.drift is not None]
    wanted = len(list(part))
    hours = sum(line.seconds for line in lines.lines if math.isfinite(line.seconds)) / 3600
    status = f"{NO_RUN.capitalize()}; {wanted} rows are planned."
    if lines.lines:
        status = (
            f"{len(lines.lines)} runs have ended, in {hours:.3g} core-hours; {len(drifts)} of {wanted} rows "
            "have two sizes or more."
        )
    sections = [Section("Drift of the best rate", [_plot(drifts), known.drifts, known.errors])]
    return Chapter(
        question.key,
        question.title,
        QUESTION,
        status,
        len(drifts) == wanted,
        bool(drifts),
        sentences=tuple(_sentences(drifts)),
        sections=sections if drifts else (),
        styled=list(dict.fromkeys(row.searches.side.rule for row in drifts)),
        picture="drift" if drifts else "",
        command="python -m benchmarks.drift --report",
    )


def _sentences(drifts: Sequence[Row]) -> Iterator[str]:
    """A sentence for every axis over which a rule was tried."""
    for free in drifts:
        searches = free.searches
        beside = [
            row
            for row in drifts
            if row.searches.pair == searches.pair and row.searches.axis == searches.axis and row is not free
        ]
        if searches.side.rule == FREE and beside:
            model, optimizer = searches.pair
            yield (
                f"{model} with {optimizer}, {searches.axis} {searches.sizes[0]} to {searches.sizes[-1]}: the "
                f"best rate {'; '.join(map(_movement, [free, *beside]))}."
            )


def _movement(row: Row) -> str:
    """Whether the rate stays within `NEAR` under a rule, in words."""
    assert row.drift is not None  # the caller has chosen such rows
    rule = row.searches.side.rule
    low, high = row.drift.interval or (-math.inf, math.inf)
    if low >= -NEAR and high <= NEAR:
        word = "stays within half an octave"
    else:
        word = "moves" if low > 0 or high < 0 else "may move or stay"
    return f"{word} {'without a rule' if rule == FREE else f'with {rule}'}: {row.drift}"


def _plot(drifts: Sequence[Row]) -> Plot:
    views = [
        View(
            axis,
            "octaves, smallest to largest size",
            "",
            [_series(row) for row in drifts if row.searches.axis == axis],
            limits=(-SHOWN, SHOWN),
        )
        for axis in AXES
        if any(row.searches.axis == axis for row in drifts)
    ]
    return Plot(
        "drift",
        "Drift of the best rate",
        views,
        "A row per model, optimizer and rule, a column per axis, with 95 % intervals; at zero the rate of "
        "the smallest size is that of the largest that was reached. An arrow stands for an interval that "
        "goes on. The colour is that of the rule.",
        variant_rows=True,
        zero_line=True,
        panels=True,
    )


def _series(row: Row) -> Series:
    assert row.drift is not None  # the caller has chosen such rows
    low, high = row.drift.interval or (None, None)
    ends: tuple[list[float], list[float]] = ([], []) if low is None or high is None else ([low], [high])
    return Series(row.name, row.searches.side.rule, [row.drift.octaves], [row.name], *ends, points=True)
