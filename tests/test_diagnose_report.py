"""What the report shows of the models and their gradients, against what was written down or saved."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
import torch
from tiny_runs import of_kind, tiny

from zoo import load_model
from zoo.ablate.results import Results, read_results
from zoo.diagnose.conditioning import matrix_spectra
from zoo.report.model_plots import Point, _by_layer, model_plots
from zoo.report.plot import Series
from zoo.report.variable_plots import variable_plots
from zoo.train.run import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    ngpt = "model={type: ngpt, vocab_size: 256, d_model: 16, n_layers: 3, n_heads: 2, d_mlp: 24}"
    lstm = "model={type: lstm, vocab_size: 256, d_model: 16, d_memory: 24}"
    return [
        train(tiny(folder, "name=sphere", ngpt, steps=6, diagnose_every=3)).folder,
        train(tiny(folder, "name=memory", lstm, steps=6, diagnose_every=None)).folder,
    ]


@pytest.fixture(scope="module")
def results(runs: list[Path]) -> Results:
    return read_results(runs)


def numbers(values: Sequence[float] | Sequence[str]) -> list[float]:
    return [float(value) for value in values]


def test_inside_the_models(runs: list[Path], results: Results) -> None:
    """A view for every kind of matrix or vector, a line for every variant that has it."""
    plots = {plot.key: {view.name: view.series for view in plot.views} for plot in model_plots(results)}
    assert plots.keys() == {
        "condition-numbers",
        "factors",
        "attention-entropy",
        "eigenvalues",
        "embedding-norms",
        "dot-products",
    }
    (line,) = plots["condition-numbers"]["attention.k"]
    saved = [c for c in matrix_spectra(load_model(runs[0])) if c.location.label == "attention.k"]
    assert (line.variant, line.x) == ("sphere", [1, 2, 3])
    assert line.y == pytest.approx([c.condition_numbers.quantile(0.5).item() for c in saved])
    assert list(line.high) == pytest.approx([c.condition_numbers.max().item() for c in saved])
    assert [series.variant for series in plots["condition-numbers"]["lstm.weight, renormalised"]] == [
        "memory"
    ]
    assert [series.variant for series in plots["eigenvalues"]["embedding"]] == ["sphere", "memory"]
    (alpha,) = plots["factors"]["mlp_residual.alpha"]
    assert all(
        low <= middle <= high
        for low, middle, high in zip(alpha.low, numbers(alpha.y), alpha.high, strict=True)
    )
    (norms,) = [series for series in plots["embedding-norms"]["embedding"] if series.variant == "sphere"]
    assert norms.y == pytest.approx([1.0] * 101, abs=1e-6)
    assert all(0 <= value <= 1 for value in numbers(plots["attention-entropy"]["attention"][0].y))


def test_the_ratio(runs: list[Path], results: Results) -> None:
    (plot,) = [plot for plot in variable_plots(results) if plot.key == "assumption-1"]
    lines = of_kind(runs[0], "diagnose")
    views: dict[str, Series] = {view.name: view.series[0] for view in plot.views}
    name = "blocks.1.mlp.u.weight"
    assert views[name].x == [3, 6]
    assert views[name].y == [line["variables"][name]["ratio"] for line in lines]
    lowest = views["lowest of all"]
    assert all(y <= v for y, v in zip(numbers(lowest.y), numbers(views[name].y), strict=True))


def test_runs_without_either(runs: list[Path]) -> None:
    """No measurements, and a checkpoint that is gone."""
    shutil.rmtree(runs[1] / "checkpoints")
    alone = read_results([runs[1]])
    assert "assumption-1" not in {plot.key for plot in variable_plots(alone)}
    assert list(model_plots(alone)) == []


def test_a_layer_with_an_infinite_number_has_no_point() -> None:
    """Its median over the finite heads alone would look well conditioned."""
    heads = {1: [inf, inf, inf, 20.0], 2: [10.0, 30.0, 20.0]}
    lines = _by_layer(("attention.q", layer, torch.tensor(values), 0.0) for layer, values in heads.items())
    assert lines == {"attention.q": [Point(2, 10.0, 20.0, 30.0)]}
