"""The drift table: its search over rates, its drift, and that it is resumed from its CSV."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS
from scipy import stats

from benchmarks.drift.cells import MODELS, OPTIMIZERS, SIZES, STEPS, Cell, Part, Side, configuration, sides_of
from benchmarks.drift.lines import GRID, NEAR, RESULTS, Line, Table, check_settings
from benchmarks.drift.rows import drift_table
from benchmarks.drift.scatter import Scatter, drift, equal_scatter, pooled
from benchmarks.drift.training import due
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
    known = drift_table(again, part)
    (row,) = known.drifts.texts
    assert row[4] == "64 128 256 512"
    assert row[7].startswith("-0.75 (-0.7")
    assert known.errors.texts == [["gpt", "adamw", "4", "3", "0.00"]]


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
    (row,) = drift_table(table, part).drifts.texts
    assert row[4:6] == ["64", "128"]
    assert row[7] == "–"  # of one size


def test_drift_by_hand() -> None:
    three = [[4e-3, 4e-3, 1e-3], [4e-3, 4e-3, 1e-3]]
    found = drift((1, 2, 4), three)
    assert found.octaves == pytest.approx(-2)
    # residuals -1/3, 2/3, -1/3 of log2, twice: s^2 = 4/3 over three degrees of freedom, t(3) = 3.182; a slope
    # over two octaves from two seeds and a sum of squares of 2
    own = 3.182 * math.sqrt(4 / 9) * 2 / math.sqrt(2 * 2)
    assert found.half == pytest.approx(own, rel=1e-3)
    assert drift((1, 8), [[1.0, 2.0], [1.0, 4.0]]).half is None
    # A search with an sd of .5 and six degrees of freedom, t(6) = 2.447: the wider interval is taken.
    search = Scatter(7, 0.5, 6)
    pair = drift((1, 8), [[1.0, 2.0], [1.0, 4.0]], search)
    assert pair.octaves == pytest.approx(1.5)
    assert pair.half == pytest.approx(2.447 * 0.5, rel=1e-3)
    assert drift((1, 2, 4), three, search).half == pytest.approx(own, rel=1e-3)
    assert drift((1, 2, 4), three, Scatter(7, 1.0, 6)).half == pytest.approx(2.447, rel=1e-3)


def test_the_scatter_of_a_search_is_that_of_cells_and_seeds() -> None:
    """An analysis of variance with two factors: best rates of cells and shifts of seeds do not count."""
    best, shift = np.array([[1.0], [4.0], [-2.0]]), np.array([[0.5, -0.5]])
    error = np.array([[0.1, -0.1], [0.0, 0.0], [-0.1, 0.1]])
    found = pooled(best + shift + error)
    assert found is not None
    assert (found.cells, found.degrees) == (3, 2)
    assert found.sd == pytest.approx(math.sqrt(0.04 / 2))
    assert pooled(best) is None
    assert pooled(best[:1] + shift) is None


def test_whether_groups_scatter_alike_is_told_by_ranks() -> None:
    assert equal_scatter([[1.0, 2.0, 3.0]]) is None
    apart = equal_scatter([[1.0, 2.0, 3.0, 4.0, 90.0], [5.0, 6.0, 7.0, 8.0, 9.0]])
    ranks = 12 / (10 * 11) * (20**2 + 35**2) / 5 - 3 * 11  # 1 to 4 and 10, 5 to 9: Kruskal and Wallis (1952)
    assert apart == pytest.approx(stats.chi2.sf(ranks, 1))
    same = equal_scatter([[1.0, 4.0, 5.0, 8.0], [2.0, 3.0, 6.0, 7.0]])
    assert same == pytest.approx(1)


@pytest.mark.parametrize("tails", [None, 3])
def test_intervals_cover(tails: int | None) -> None:
    """Simulated searches: the true drift lies inside as often as scatter.py says, on lines and off them.

    Six cells share the base size, as those of a model with an optimizer do: two widths, three depths, three
    horizons. The depths do not lie on a line; the drift is that of the line through them.
    """
    rows = {(1, 2): (0, 1), (1, 2, 4): (0, 2, 3), (1, 4, 16): (0, 4, 5)}
    best = np.array([0.0, -0.5, 0.6, -0.4, 0.3, 0.6])
    rng = np.random.default_rng(0)
    trials = 600
    inside = dict.fromkeys(rows, 0)
    for _ in range(trials):
        errors = 0.2 * (rng.standard_normal((6, 2)) if tails is None else rng.standard_t(tails, (6, 2)))
        found = best[:, None] + rng.standard_normal((1, 2)) + errors
        search = pooled(found)
        for sizes, cells in rows.items():
            truth = drift(sizes, [[2.0 ** best[cell] for cell in cells]]).octaves
            low, high = drift(sizes, list(2.0 ** found[list(cells)].T), search).interval or (0.0, 0.0)
            inside[sizes] += low <= truth <= high
    shares = {sizes: count / trials for sizes, count in inside.items()}
    assert shares[1, 2] == pytest.approx(0.95, abs=0.02)  # the pooled interval alone
    assert 0.96 < shares[1, 4, 16] < 0.995  # the wider of two
    assert shares[1, 2, 4] > 0.97


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


def test_the_intervals_that_the_page_quotes() -> None:
    """Each one in the last section of docs/transfer.md is in the table, up to rounding and `falls by`."""
    quoted = (DOCS / "transfer.md").read_text("utf-8").split("## How far the best rate drifts")[1]
    number = r"-?\d*\.\d+"
    pairs = [
        pair
        for bracket in re.findall(r"\(([^()]*)\)", quoted)
        for pair in re.findall(rf"({number}) to ({number})(?=,|$)", bracket)
    ]
    assert len(pairs) >= 5
    part = Part(tuple(sides_of(MODELS, OPTIMIZERS, ())))
    rows = drift_table(Table.read(RESULTS), part).rows
    known = [row.drift.interval for row in rows if row.drift and row.drift.interval]
    known += [(-high, -low) for low, high in known]
    unknown = []
    for pair in pairs:
        digits = [len(end.partition(".")[2]) for end in pair]
        rounded = [[round(end, n) for end, n in zip(row, digits, strict=True)] for row in known]
        if [float(end) for end in pair] not in rounded:
            unknown.append(pair)
    assert unknown == []
