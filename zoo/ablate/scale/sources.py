"""Where a table of runs comes from: a CSV, run folders of zoo, or exports of other loggers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.ablate.scale.runs import RunTable, read_runs
from zoo.utils.errors import DataError


def read_table(paths: Sequence[Path]) -> RunTable:
    """Read runs.

    Args:
        paths: one CSV.

    Raises:
        DataError: a file cannot be read, or its runs contradict each other.
    """
    if len(paths) > 1:
        raise DataError(f"{len(paths)} paths; expected one table")
    return read_runs(paths[0])
