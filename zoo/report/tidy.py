"""A report's numbers as CSV, in full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from zoo.ablate.curve import COSTS
from zoo.ablate.results import Results
from zoo.ablate.sheet import Sheet


def sheets_csv(sheets: Sequence[Sheet]) -> str:
    """Tables as one: a line per table, row and column, so that any program reads it.

    Args:
        sheets: of the report; what stands before the first number of a row names the row.
    """
    lines: list[list[Any]] = [["table", "row", "variant", "column", "value"]]
    for sheet in sheets:
        for number, row in enumerate(sheet.rows, 1):
            for column, value in list(zip(sheet.columns, row, strict=True))[1:]:
                parts = column.parts or (column.title,)
                values = value if isinstance(value, tuple) else (value,) * len(parts)
                lines += [
                    [sheet.key, number, row[0], f"{part}", cell]
                    for part, cell in zip(parts, values, strict=True)
                    if cell is not None
                ]
    return _csv(lines)


def curves_csv(results: Results) -> str:
    """Every validation loss of every run, with what the run had cost until then."""
    lines: list[list[Any]] = [["variant", "run", "seed", *COSTS, "loss"]]
    for run in results.manifest.runs:
        found = results.measured.get(run.id)
        if found:
            columns = [getattr(found.validation, key) for key in (*COSTS, "loss")]
            lines += [[run.variant, run.id, run.seed, *point] for point in zip(*columns, strict=True)]
    return _csv(lines)


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
