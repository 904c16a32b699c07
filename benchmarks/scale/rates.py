"""Q5, which rates transfer: the drift table and its picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.drift.cells import AXES, Part, every_side
from benchmarks.drift.lines import Table, check_settings
from benchmarks.drift.rows import Row, drift_table
from benchmarks.scale.chapters import NO_RUN, Chapter
from benchmarks.scale.questions import Question
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section

QUESTION = (
    "How far does the best rate move from the smallest to the largest size of an axis? Does a rule stop it?"
)
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
        sections=sections if drifts else (),
        styled=list(dict.fromkeys(row.searches.side.rule for row in drifts)),
        picture="drift" if drifts else "",
        command="python -m benchmarks.drift --report",
    )


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
