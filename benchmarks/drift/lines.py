"""The finished runs of the drift table, a line of a CSV each, and the searches that they belong to."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_type_hints

from benchmarks.drift.cells import MIDDLE, Cell, Part, Side, configuration
from benchmarks.harness import ROOT
from zoo.ablate.lines import config_hash
from zoo.ablate.rate_search import rounded, search

RESULTS = ROOT / "docs/results/drift.csv"
GRID = tuple(2.0**k for k in range(-2, 3))
NEAR = GRID[1:4]


@dataclass(frozen=True)
class Line:
    """A line of the CSV: a finished run; the loss of one that diverged is infinite.

    Attributes:
        seconds: the seconds that the run's steps took.
        config: a hash of all settings of the run, the same on every machine.
        commit: the commit of zoo that trained the run; empty: it is not known.
    """

    model: str
    optimizer: str
    rule: str
    width: int
    layers: int
    horizon: int
    seed: int
    rate: float
    loss: float
    seconds: float
    config: str = ""
    commit: str = ""

    @property
    def cell(self) -> Cell:
        return Cell(*(getattr(self, field.name) for field in fields(Cell)))


def check_settings(table: Table, part: Part) -> None:
    """Refuse lines whose settings are no longer those of this file.

    Raises:
        SystemExit: there is such a line; the message names it.
    """
    sides = set(part.sides)
    for line in table.lines:
        if Side(line.model, line.optimizer, line.rule) not in sides:
            continue
        expected = config_hash(configuration(line.cell, line.rate, Path()))
        if line.config != expected:
            raise SystemExit(
                f"{line.cell} at {line.rate:g}: trained with settings {line.config or 'unknown'}, this file "
                f"has {expected}; expected lines of one study: remove the line, or name another --csv"
            )


class Table:
    """The finished runs, and what follows from them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = list(lines)
        self._losses = {(line.cell, line.rate): line.loss for line in lines}

    @classmethod
    def read(cls, file: Path) -> Table:
        if not file.exists():
            return cls([])
        kinds = get_type_hints(Line)
        with file.open(encoding="utf-8", newline="") as rows:
            return cls([Line(**{k: kinds[k](v) for k, v in row.items()}) for row in csv.DictReader(rows)])

    def append(self, file: Path, line: Line) -> None:
        """Add a finished run, to the file as well."""
        file.parent.mkdir(parents=True, exist_ok=True)
        begun = file.exists()
        with file.open("a", encoding="utf-8", newline="") as rows:
            writer = csv.DictWriter(rows, [field.name for field in fields(Line)], lineterminator="\n")
            if not begun:
                writer.writeheader()
            writer.writerow(asdict(line))
        self.lines.append(line)
        self._losses[line.cell, line.rate] = line.loss

    def search(self, cell: Cell, middle: float, grid: Sequence[float]) -> tuple[list[float], float | None]:
        """The rates that are still to be trained, and the best one once none is; inf at a border."""
        found = search([rounded(middle * factor) for factor in grid], lambda rate: self.loss(cell, rate))
        missing = [rate for rate in found.rates if self.loss(cell, rate) is None]
        if missing:
            return missing, None
        return [], math.inf if found.ln_best is None else math.exp(found.ln_best)

    def loss(self, cell: Cell, rate: float) -> float | None:
        return self._losses.get((cell, rate))

    def row(
        self, side: Side, axis: str, sizes: Sequence[int], seed: int
    ) -> tuple[list[tuple[Cell, float]], list[float | None]]:
        """What is to be trained now of the sizes of an axis, and the best rates as far as they are known."""
        best: list[float | None] = []
        middle, grid = MIDDLE[side.optimizer], GRID
        for size in sizes:
            cell = Cell.at(side, axis, size, seed)
            missing, found = self.search(cell, middle, grid)
            if found is None:
                return [(cell, rate) for rate in missing], best
            best.append(None if math.isinf(found) else found)
            middle, grid = (middle if math.isinf(found) else found), NEAR
        return [], best
