"""What a first user of the Python interface types: names and built models, and objects that are no models."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import zoo
from zoo import (
    OPTIMIZERS,
    Registry,
    Role,
    build_model,
    build_optimizer,
    explain,
    load_config,
    load_model,
    save_model,
)
from zoo.init import FreezeRule, freeze
from zoo.models import GPT
from zoo.spec import declared
from zoo.utils.errors import CheckpointError, ConfigError


def test_explain_takes_names_and_models() -> None:
    by_name = explain("gpt-tiny")
    built = explain(build_model("gpt-tiny"))
    assert (
        by_name.totals.parameters
        == built.totals.parameters
        == explain(load_config("gpt-tiny")).totals.parameters
    )
    for declared_row, row in zip(by_name.rows, built.rows, strict=True):
        assert row.sigma == (
            None if declared_row.sigma is None else pytest.approx(declared_row.sigma, rel=0.1)
        )
    assert not by_name.measured and built.measured == "the weights of the model"
    with torch.device("meta"):
        declared_only = explain(build_model("gpt-tiny"))
    assert [row.sigma for row in declared_only.rows] == [row.sigma for row in by_name.rows]
    assert not declared_only.measured


def test_explain_measures_what_was_loaded(tmp_path: Path) -> None:
    """The spread of the weights there are, not that of the initialisation; constants have none."""
    model = build_model("gpt-tiny")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
        model.get_parameter("blocks.0.attention.q.weight").zero_()
    save_model(model, tmp_path / "model.safetensors")
    for given in (load_model(tmp_path), load_config({"model": {"from": str(tmp_path)}})):
        explanation = explain(given)
        for row in explanation.rows:
            spread = model.get_parameter(row.name).double().std(correction=0).item()
            assert (row.sigma or 0.0) == pytest.approx(spread, rel=1e-9), row.name
        rows = {row.name: row.sigma for row in explanation.rows}
        assert rows["norm.scale"] is None and rows["blocks.0.attention.q.weight"] == 0
    console = Console(width=200, record=True, file=StringIO())
    console.print(explanation.table(fold=True))
    text = console.export_text()
    assert f"sigma           measured on the weights of {tmp_path}" in text
    assert re.search(r"blocks\.\*\.attention\.q\.weight \(x 2\) .* 0\.\.0\.0\d+ ", text), text


def test_explain_shows_the_declarations_that_a_model_has_now() -> None:
    """They were those of its recipe: other gates and etas than those that an optimizer is built with."""
    sizes: dict[str, Any] = {"vocab_size": 32, "d_model": 8, "n_layers": 1, "n_heads": 1}
    model = build_model("gpt", **sizes, constraint="hyperball")
    zoo.split(model, "wesar")
    freeze(model, [FreezeRule(roles=(Role.EMBEDDING,))])
    rows = {row.name: row for row in explain(model).rows}
    entries = {entry.name: entry for entry in Registry(model)}
    parameters = {p.name: p for p in declared(model)}
    assert rows.keys() == parameters.keys()
    for name, row in rows.items():
        p, entry = parameters[name], entries.get(name)
        assert row.eta == (entry.eta if entry else None), name
        assert row.gate == (p.spec.scale if p.local in p.module.reparameterised else None), name
        assert row.sphere == p.spec.sphere, name
    assert rows["embedding.weight"].lr is None
    assert rows["blocks.0.attention.q.weight"].sphere == "whole"
    assert all(not p.is_meta for p in model.parameters())


def test_parts_of_a_model_are_not_explained() -> None:
    """A model without its head, and the trunk of a classifier, ended in an AttributeError."""
    model = build_model("gpt-tiny")
    assert isinstance(model, GPT)
    model.remove_head()
    with pytest.raises(ConfigError, match=r"explain: the model lacks read_out, .*expected the whole model"):
        explain(model)
    classifier = build_model("classifier", classes=2, trunk=model.recipe.model.model_dump())
    with pytest.raises(ConfigError, match="explain: GPT is a part of a model, or was not made by build_mod"):
        explain(classifier.get_submodule("trunk"))  # type: ignore[arg-type]  # what it refuses


def test_the_default_device_is_torchs() -> None:
    with torch.device("meta"):
        model = build_model("gpt-tiny")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.device.type for p in build_model("gpt-tiny").parameters()} == {"cpu"}


@pytest.mark.parametrize("given", [nn.Linear(3, 4), nn.Linear(3, 4).parameters(), 7])
def test_what_is_no_model_of_zoo(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"build_optimizer: .*Amos\.for_module"):
        build_optimizer(given, "adamw", lr=1e-3)
    with pytest.raises(ConfigError, match=r"the class of another optimizer, such as zoo\.optim\.muon\.Muon"):
        build_optimizer(given, "muon", lr=1e-3)
    with pytest.raises(CheckpointError, match="is no model of zoo"):
        save_model(given, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_registry_is_iterated_by_names() -> None:
    """It ended in a TypeError of difflib."""
    assert {"adamw", "amos"} <= {*OPTIMIZERS}
    assert list(OPTIMIZERS) == sorted(OPTIMIZERS.choices)
    assert "muon" in OPTIMIZERS


@pytest.mark.parametrize("layer_decay", [-1.0, 0.0, 2.0, float("nan"), float("inf"), "half", None])
def test_a_layer_decay_is_a_factor_of_at_most_1(layer_decay: Any) -> None:
    with pytest.raises(ConfigError, match=rf"layer_decay {layer_decay}: expected a number above 0 and at"):
        build_optimizer(build_model("gpt-tiny"), "adamw", lr=1e-3, layer_decay=layer_decay)


def test_what_is_no_override_and_no_module() -> None:
    """They ended in an AttributeError."""
    model = build_model("gpt-tiny")
    wrong: Any = [{"role": "linear", "eta": 1.0}]
    with pytest.raises(ConfigError, match=r"eta_overrides\[0\]: value \{.*\}: expected an override, such as"):
        build_optimizer(model, "amos", lr=1e-3, eta_overrides=wrong)
    with pytest.raises(ConfigError, match=r"got list; expected a module, whose layers say what eta is"):
        zoo.Amos.for_module(wrong, lr=1e-3)
    exchanged: Any = (model, torch.optim.SGD(model.parameters()))
    with pytest.raises(ConfigError, match=r"attach: got GPT and SGD; expected an optimizer and the model"):
        zoo.attach(*exchanged)


def test_what_is_no_rule_and_no_optimizer() -> None:
    model = build_model("gpt-tiny")
    for rule in ("mup", {"type": "mup"}):
        wrong: Any = rule
        with pytest.raises(ConfigError, match=r"transfer: value .*mup.*: expected a rule, such as zoo\."):
            build_optimizer(model, "adamw", lr=1e-3, transfer=wrong)
    for given in (torch.optim.SGD(model.parameters()), None, 3):
        wrong = given
        message = rf"optimizer: got {type(given).__name__}; expected its name, .* is given to zoo\.attach"
        with pytest.raises(ConfigError, match=message):
            build_optimizer(model, wrong, lr=1e-3)


@pytest.mark.parametrize("name", ["m.pt", "model.bin", "notes.txt"])
def test_a_model_is_not_saved_as_a_file_of_another_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    model = build_model("gpt", d_model=8, n_layers=1, n_heads=1, vocab_size=16)
    with pytest.raises(CheckpointError, match=rf"{name}: a model is saved as a \.safetensors file or in a"):
        save_model(model, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_misspelt_architecture_is_compared_with_architectures() -> None:
    with pytest.raises(ConfigError, match=r"no config or architecture called 'gptx'; did you mean 'gpt'\?"):
        build_model("gptx", vocab_size=16)


def test_numbers_of_numpy_are_numbers() -> None:
    sizes: dict[str, Any] = {"n_layers": 1, "n_heads": 1, "vocab_size": 16}
    numbers: dict[str, Any] = {"d_model": np.int64(8), "norm_eps": np.float32(0.25)}
    plain = build_model("gpt", **sizes, d_model=8, norm_eps=0.25)
    assert build_model("gpt", **sizes, **numbers).recipe == plain.recipe


def test_a_compiled_model_is_saved_as_the_model_inside(tmp_path: Path) -> None:
    model = build_model("gpt", d_model=8, n_layers=1, n_heads=1, vocab_size=16)
    compiled: Any = torch.compile(model, backend="eager")
    tensors = load_model(save_model(compiled, tmp_path / "model.safetensors")).state_dict()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(CheckpointError, match="Linear is no model of zoo"):
        wrong: Any = torch.compile(nn.Linear(2, 2), backend="eager")
        save_model(wrong, tmp_path / "linear")


def test_both_spellings_of_a_precision() -> None:
    for name in ("bf16", "bfloat16"):
        train = load_config("quickstart-gpt", [f"train.precision={name}"]).train
        assert train is not None
        assert train.precision == "bf16"
    assert zoo.__version__
