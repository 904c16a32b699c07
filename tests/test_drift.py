"""The drift table: its search over rates, its drift, and that it is resumed from its CSV."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.drift import (
    GRID,
    MODELS,
    NEAR,
    OPTIMIZERS,
    SIZES,
    STEPS,
    Cell,
    Line,
    Part,
    Side,
    Table,
    check_settings,
    configuration,
    drift,
    due,
    report,
    sides_of,
)
from zoo.ablate.lines import config_hash
from zoo.run.first_weights import declared_model
from zoo.run.transfer import check_optimizer, rates_of

SIDE = Side("gpt", "adamw", "mup")


def law(cell: Cell, rate: float) -> Line:
    """The best rate is 3e-3 at the base size and falls with the fourth root of the width."""
    best = 3e-3 * (cell.width / 64) ** -0.25
    values = (cell.model, cell.optimizer, cell.rule, cell.width, cell.layers, cell.horizon, cell.seed)
    return Line(*values, rate, 2 + 0.1 * math.log(rate / best) ** 2, 1.0)


def test_the_table_from_a_law(tmp_path: Path) -> None:
    """Runs are found one after the other, written, and never asked for again."""
    file, part = tmp_path / "drift.csv", Part((SIDE,), ("width",))
    table = Table.read(file)
    while runs := due(table, part):
        table.append(file, law(*runs[0]))
    assert len(table.lines) == 2 * (len(GRID) + 3 * len(NEAR))
    again = Table.read(file)
    assert due(again, part) == []
    _, best = again.row(SIDE, "width", SIZES["width"], 0)
    expected = [3e-3 * (width / 64) ** -0.25 for width in SIZES["width"]]
    assert best == pytest.approx(expected, rel=0.01)
    (row,) = report(again, part).splitlines()[2:]
    assert "-0.75 (-0.7" in row
    assert "64 128 256 512" in row


def test_lines_of_other_settings_are_refused(tmp_path: Path) -> None:
    """A line is used as long as its settings are those of the script, wherever it was trained."""
    part = Part((SIDE,), ("width",))
    cell = Cell.at(SIDE, "width", 128, 0)
    trained = configuration(cell, 1e-3, tmp_path).model_copy(update={"name": "another"})
    line = replace(law(cell, 1e-3), config=config_hash(trained))
    check_settings(Table([line]), part)
    check_settings(Table([replace(line, model="ngpt", rule="none", config="")]), part)  # not asked for
    for wrong in (replace(line, config=""), replace(line, rate=2e-3), replace(line, seed=1)):
        with pytest.raises(SystemExit, match="expected lines of one study"):
            check_settings(Table([wrong]), part)


def test_a_border_is_followed_and_told(tmp_path: Path) -> None:
    table, part = Table([]), Part((SIDE,), ("width",), seeds=1, sizes=2)
    while runs := due(table, part):
        cell, rate = runs[0]
        line = law(cell, rate)
        table.append(tmp_path / "drift.csv", line if cell.width == 64 else replace(line, loss=-rate))
    assert "at the border: 128" in report(table, part)


def test_drift_by_hand() -> None:
    found = drift((1, 2, 4), [[4e-3, 4e-3, 1e-3], [4e-3, 4e-3, 1e-3]])
    assert found.octaves == pytest.approx(-2)
    # residuals -1/3, 2/3, -1/3 of log2: s^2 = 2/3, over sum of squares 2; t(1) = 12.706; two octaves
    assert found.half == pytest.approx(12.706 * math.sqrt(2 / 3 / 2) * 2, rel=1e-3)
    seeds = drift((1, 8), [[1.0, 2.0], [1.0, 4.0]])
    assert seeds.octaves == pytest.approx(1.5)
    assert seeds.half == pytest.approx(12.706 * 0.5, rel=1e-3)
    assert drift((1, 2), [[1.0, 2.0]]).half is None


def test_every_cell_is_a_run_that_its_rule_speaks_of() -> None:
    for side in sides_of(MODELS, OPTIMIZERS, ()):
        for axis in side.axes:
            config = configuration(Cell.at(side, axis, SIZES[axis][1], 0), 1e-3, Path())
            assert config.optimizer is not None
            check_optimizer(config.transfer, config.optimizer)
            rates = rates_of(declared_model(config).model, config.transfer, config.optimizer, 2 * STEPS)
            assert (rates is None) == (side.rule == "none")


def test_all_rules_share_the_base_size() -> None:
    assert Cell.at(SIDE, "width", 64, 0) == Cell.at(Side("gpt", "adamw", "none"), "depth", 2, 0)
