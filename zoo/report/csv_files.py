"""A report's numbers as CSV, with full precision and one number per line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from zoo.ablate.curve import COSTS
from zoo.ablate.results import Results
from zoo.ablate.table import Table


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
    """Every validation loss of every run, and what the run had cost until then."""
    lines: list[list[object]] = [["variant", "run", "seed", *COSTS, "loss"]]
    for run in results.manifest.runs:
        if run.id in results.metrics:
            validation = results.metrics[run.id].validation
            columns = [getattr(validation, key) for key in (*COSTS, "loss")]
            lines += [[run.variant, run.id, run.seed, *point] for point in zip(*columns, strict=True)]
    return _csv(lines)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(value) for value in line] for line in lines)
    return text.getvalue()


def _inert(value: object) -> object:
    """A text that a spreadsheet would take for a formula, with the quote that makes it a text."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )
