"""The drift table: how far the best rate moves over an axis, row by row, and how well it is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import mean

import numpy as np

from benchmarks.drift.cells import AXES, SIZES, Cell, Part, Side
from benchmarks.drift.lines import Table
from benchmarks.drift.scatter import ENOUGH, Drift, Scatter, deviations, drift, equal_scatter, pooled
from zoo.ablate import table as tables

Pair = tuple[str, str]
"""A model and an optimizer."""


@dataclass(frozen=True)
class Searches:
    """The searches for the best rate that make a row of the drift table.

    Attributes:
        side: what the row is about.
        axis: the axis over which the rate drifts.
        sizes: the sizes at which all seeds have a best rate inside their grids.
        border: sizes at which a best rate lies at the border.
        rates: the best rates at `sizes`, for each seed.
    """

    side: Side
    axis: str
    sizes: tuple[int, ...]
    border: tuple[int, ...]
    rates: tuple[tuple[float, ...], ...]

    @property
    def pair(self) -> Pair:
        """The model and the optimizer."""
        return self.side.model, self.side.optimizer

    @property
    def cells(self) -> dict[Cell, tuple[float, ...]]:
        """For each size, as a cell of the first seed, the best rates of all seeds."""
        cells = (Cell.at(self.side, self.axis, size, 0) for size in self.sizes)
        return dict(zip(cells, zip(*self.rates, strict=True), strict=True))


@dataclass(frozen=True)
class Row:
    """A row of the drift table.

    Attributes:
        searches: the searches of the row.
        drift: the drift of the best rate; None with fewer than two sizes.
    """

    searches: Searches
    drift: Drift | None

    @property
    def name(self) -> str:
        """Model, optimizer and rule."""
        side = self.searches.side
        return f"{side.model} {side.optimizer}" + ("" if side.rule == "none" else f", {side.rule}")

    @property
    def means(self) -> tuple[float, ...]:
        """The geometric means of the best rates over the seeds."""
        return tuple(
            math.exp(mean(math.log(rate) for rate in of_size))
            for of_size in zip(*self.searches.rates, strict=True)
        )


@dataclass(frozen=True)
class DriftTable:
    """The rows, and how far searches scatter.

    Attributes:
        rows: the rows that have a best rate.
        scatter: the scatter of a search, by model and optimizer.
        between_pairs: the p-value of the hypothesis that all pairs scatter alike; None: there are too few
            searches.
        between_axes: the p-value of the hypothesis that all axes scatter alike, after the deviations of a
            pair are divided by its scatter.
    """

    rows: tuple[Row, ...]
    scatter: Mapping[Pair, Scatter]
    between_pairs: float | None
    between_axes: float | None

    @property
    def drifts(self) -> tables.Table:
        """A row for each model, optimizer, rule and axis."""
        columns = [
            *(tables.Column(title, align_right=False) for title in ("model", "optimizer", "rule", "axis")),
            tables.Column("sizes", _listed),
            tables.Column("at a border", _listed),
            tables.Column("best rates", lambda rates: _listed(f"{rate:.2g}" for rate in rates)),
            tables.Column("octaves"),
            tables.Column("seeds"),
        ]
        cells = [
            [*astuple(s.side), s.axis, s.sizes, s.border or None, row.means, row.drift, len(s.rates)]
            for row in self.rows
            for s in (row.searches,)
        ]
        note = (
            "Octaves of the best rate from the smallest to the largest size, by a line of log2 rate over "
            "log2 size, with a 95 % interval from the scatter of searches of this model with this optimizer "
            f"(the next table), or from the row's own scatter about the line where it has {ENOUGH} degrees "
            "of freedom or more and gives the wider one. Best rates are means over the seeds."
        )
        return tables.Table("drift-table", "Drift of the best rate", columns, cells, note, of_variants=False)

    @property
    def errors(self) -> tables.Table:
        """The scatter of a search for each model and optimizer."""
        columns = [
            tables.Column("model", align_right=False),
            tables.Column("optimizer", align_right=False),
            tables.Column("cells"),
            tables.Column("degrees of freedom"),
            tables.Column("sd of a search, octaves", lambda v: f"{v:.2f}"),
        ]
        cells = [[*pair, s.cells, s.degrees, s.sd] for pair, s in self.scatter.items()]
        note = (
            "Standard deviation of the best rate that a search finds, from the seeds of all cells. An error "
            "that the searches of all seeds share is not in it."
        )
        if self.between_pairs is not None:
            note += (
                " Every model with an optimizer has a scatter of its own: that all scatter alike has "
                f"p = {self.between_pairs:.2g} by the ranks of the deviations."
            )
        if self.between_axes is not None:
            note += (
                f" Width, depth and horizon are pooled: that they scatter alike has p = "
                f"{self.between_axes:.2g} once deviations are divided by those of their pair."
            )
        return tables.Table("searches", "Scatter of a search", columns, cells, note, of_variants=False)


def drift_table(table: Table, part: Part) -> DriftTable:
    """The drift table of a part, of the sizes at which all seeds have a best rate."""
    found = list(searches(table, part))
    cells: dict[Pair, dict[Cell, tuple[float, ...]]] = {}
    for row in found:
        if len(row.rates) == part.seeds:
            cells.setdefault(row.pair, {}).update(row.cells)
    octaves = {pair: np.log2(list(of_pair.values())) for pair, of_pair in cells.items() if of_pair}
    scatter = {pair: known for pair, of_pair in octaves.items() if (known := pooled(of_pair))}
    sizes = {pair: np.sqrt((deviations(octaves[pair]) ** 2).mean(1)) for pair in scatter}
    by_axis: dict[str, list[float]] = {axis: [] for axis in AXES}
    for pair, of_pair in sizes.items():
        for cell, size in zip(cells[pair], of_pair, strict=True):
            if (axis := axis_of(cell)) and scatter[pair].sd:
                by_axis[axis].append(float(size) / scatter[pair].sd)
    return DriftTable(
        tuple(
            Row(row, drift(row.sizes, row.rates, scatter.get(row.pair)) if len(row.sizes) > 1 else None)
            for row in found
        ),
        scatter,
        equal_scatter([list(map(float, of_pair)) for of_pair in sizes.values()]),
        equal_scatter(list(by_axis.values())),
    )


def axis_of(cell: Cell) -> str | None:
    """The axis along which a cell is larger than the base size; None for the base size."""
    sizes = dict(zip(AXES, (cell.width, cell.layers, cell.horizon), strict=True))
    return next((axis for axis, size in sizes.items() if size != SIZES[axis][0]), None)


def searches(table: Table, part: Part) -> Iterator[Searches]:
    """The searches of the rows that have a best rate."""
    for side, axis, sizes in part:
        found = [best for seed in range(part.seeds) if (best := table.row(side, axis, sizes, seed)[1])]
        if not found:
            continue
        reached = range(min(map(len, found)))
        inside = [i for i in reached if all(best[i] is not None for best in found)]
        yield Searches(
            side,
            axis,
            tuple(sizes[i] for i in inside),
            tuple(sizes[i] for i in reached if i not in inside),
            tuple(tuple(rate for i in inside if (rate := best[i]) is not None) for best in found),
        )


def _listed(values: Sequence[object] | Iterator[object]) -> str:
    return " ".join(map(str, values))
