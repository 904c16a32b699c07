"""Q5, which rates transfer: the drift table as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from benchmarks.drift import AXES, Part, Row, Table, check_settings, every_side, rows
from benchmarks.scale.chapters import NO_RUN, Chapter
from benchmarks.scale.questions import Question
from zoo.ablate import table as tables
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section

QUESTION = (
    "How far does the best rate move from the smallest to the largest size of an axis? Does a rule stop it?"
)


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
    drifts = [row for row in rows(lines, part) if row.drift is not None]
    wanted = len(list(part))
    hours = sum(line.seconds for line in lines.lines if math.isfinite(line.seconds)) / 3600
    status = f"{NO_RUN.capitalize()}; {wanted} rows are planned."
    if lines.lines:
        status = (
            f"{len(lines.lines)} runs have ended, in {hours:.3g} core-hours; {len(drifts)} of {wanted} rows "
            "have two sizes or more."
        )
    sections = [Section("Drift of the best rate", [_table(drifts), _plot(drifts)])] if drifts else []
    return Chapter(
        question.key,
        question.title,
        QUESTION,
        status,
        sections=sections,
        styled=[axis for axis in AXES if any(row.axis == axis for row in drifts)],
        picture="drift" if drifts else "",
        command="python -m benchmarks.drift --report",
    )


def _interval(row: Row) -> tuple[float, float, float]:
    assert row.drift is not None  # the caller has chosen such rows
    half = row.drift.half or 0.0
    return row.drift.octaves, row.drift.octaves - half, row.drift.octaves + half


def _table(drifts: Sequence[Row]) -> tables.Table:
    columns = [
        tables.Column("model", align_right=False),
        tables.Column("optimizer", align_right=False),
        tables.Column("rule", align_right=False),
        tables.Column("axis", align_right=False),
        tables.Column("sizes", lambda v: " ".join(map(str, v))),
        tables.Column("at a border", lambda v: " ".join(map(str, v)) or tables.MISSING),
        tables.Column("best rates", lambda v: " ".join(f"{rate:.2g}" for rate in v)),
        tables.Column("octaves", str),
        tables.Column("seeds"),
    ]
    texts = [
        [*astuple(row.side), row.axis, row.sizes, row.border, row.rates, row.drift, row.seeds]
        for row in drifts
    ]
    note = (
        "Octaves of the best rate from the smallest to the largest size, by a line of log2 rate over log2 "
        "size, with a 95 % interval: the wider of those by the scatter of the sizes about the line and by "
        "the seeds."
    )
    return tables.Table("drift-table", "Drift of the best rate", columns, texts, note, of_variants=False)


def _plot(drifts: Sequence[Row]) -> Plot:
    series = []
    for row in drifts:
        octaves, low, high = _interval(row)
        bar = row.drift is not None and row.drift.half is not None
        ends: tuple[list[float], list[float]] = ([low], [high]) if bar else ([], [])
        series.append(Series(row.name, row.axis, [octaves], [row.name], *ends, points=True))
    view = View("octaves", "octaves of the best rate, smallest to largest size", "", series)
    return Plot(
        "drift",
        "Drift of the best rate",
        [view],
        "A row per model, optimizer, rule and axis, with its 95 % interval, as far as there is one; at zero "
        "the rate of the smallest size is that of the largest.",
        variant_rows=True,
        zero_line=True,
    )
