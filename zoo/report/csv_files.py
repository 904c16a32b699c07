"""A report's numbers as CSV, with full precision and one number per line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from math import isnan

import numpy as np

from zoo.ablate.curve import COSTS
from zoo.ablate.results import Results
from zoo.ablate.table import Table
from zoo.utils.measures import CROSS_ENTROPY


def tables_csv(tables: Sequence[Table]) -> str:
    """The tables of a report in one file, with a line per table, row and column."""
    lines: list[list[object]] = [["table", "row", "variant", "column", "value"]]
    for table in tables:
        for number, row in enumerate(table.rows, 1):
            for column, value in list(zip(table.columns, row, strict=True))[1:]:
                parts = column.parts or (column.title,)
                values = value if isinstance(value, tuple) else (value,) * len(parts)
                lines += [
                    [table.key, number, row[0], part, element]
                    for part, element in zip(parts, values, strict=True)
                    if element is not None
                ]
    return _csv(lines)


def curves_csv(results: Results) -> str:
    """All measures of every run's validations, with the costs of the run up to each of them."""
    recorded = dict.fromkeys(name for run in results.metrics.values() for name in run.measured)
    names = [name for name in recorded if name != CROSS_ENTROPY.name]
    lines: list[list[object]] = [["variant", "run", "seed", *COSTS, "loss", *names]]
    for run in results.manifest.runs:
        if run.id in results.metrics:
            metrics = results.metrics[run.id]
            columns = [getattr(metrics.validation, key) for key in (*COSTS, "values")]
            unknown = np.full(len(metrics.validation), np.nan)
            columns += [metrics.measured.get(name, unknown) for name in names]
            lines += [[run.variant, run.id, run.seed, *point] for point in zip(*columns, strict=True)]
    return _csv(lines)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(value) for value in line] for line in lines)
    return text.getvalue()


def _inert(value: object) -> object:
    """The value; a text that a spreadsheet would read as a formula gets a quote in front."""
    if isinstance(value, float) and isnan(value):
        return ""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )
