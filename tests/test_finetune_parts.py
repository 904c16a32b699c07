"""Parts that are not trained, layer-wise learning rates, measured etas: with every optimizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import zoo
from safetensors.numpy import load_file
from test_resume import OPTIMIZER_FORMS
from tiny_runs import assert_same, of_kind, tiny_fields
from two_ranks import train_on_two_ranks

from zoo import build_model, build_optimizer, load_model, split
from zoo.checkpoint.model import find_checkpoint
from zoo.config.registry import OPTIMIZERS
from zoo.init import FreezeRule, Registry, freeze, measure
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.job import Job
from zoo.spec import declared
from zoo.train.forecast import forecast
from zoo.train.run import train
from zoo.utils.run_folder import RunFolder

DIFFERENT_RATES = [form for form in OPTIMIZER_FORMS if form["type"] != "prodigy"]
"""Prodigy estimates one rate for all and refuses others (tests/test_optim_successors.py)."""
FORMS = [*DIFFERENT_RATES, {"type": "amos", "lr": 0.01, "fused": True}]
SIZES: dict[str, Any] = {"vocab_size": 64, "d_model": 16, "n_layers": 3, "n_heads": 2}
DEPTHS = {
    "gpt": (["embedding"], "blocks", ["norm", "read_out"]),
    "gpt2": (["embedding", "position"], "blocks", ["norm", "read_out"]),
    "gpt-post": (["embedding"], "blocks", ["read_out"]),
    "neox": (["embedding"], "blocks", ["norm", "read_out"]),
    "ngpt": (["embedding"], "blocks", ["read_out"]),
    "bert": (["embedding"], "blocks", ["head"]),
    "lstm": (["embedding"], "lstm", ["read_out"]),
    "resnet": (["stem"], "blocks", ["classifier"]),
    "classifier": (["trunk.embedding"], "trunk.blocks", ["trunk.norm", "head"]),
}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "position": {"type": "absolute", "length": 16}},
    "lstm": {"vocab_size": 64, "d_model": 16, "d_memory": 24},
    "resnet": {"depth": 18, "classes": 4, "width": 4},
    "classifier": {"classes": 2, "trunk": {"type": "gpt", **SIZES}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pretrained")
    fields = tiny_fields(path, steps=10, eval_every=10, checkpoint_every=10)
    train(load_config({**fields, "name": "gpt", "optimizer": {"type": "amos", "lr": 0.02}}))
    return path


@pytest.mark.parametrize("kind", DEPTHS)
def test_depth_counts_layers(kind: str) -> None:
    model = build_model(kind, device="meta", **MODELS.get(kind, SIZES))
    before, blocks, behind = DEPTHS[kind]
    depth = {p.name: p.depth for p in declared(model)}
    layers = 1 if kind == "lstm" else len(model.get_submodule(blocks)._modules)
    for name, found in depth.items():
        if any(name.startswith(f"{part}.") for part in before):
            assert found == 0, name
        elif any(name.startswith(f"{part}.") for part in behind):
            assert found == layers + 1, name
        else:
            number = name.removeprefix(f"{blocks}.").split(".")[0]
            assert found == (1 if kind == "lstm" else int(number) + 1), name
    assert {entry.name: entry.depth for entry in Registry(model)} == depth


def test_depth_of_an_encoder_decoder() -> None:
    model = build_model("t5", device="meta", **{**SIZES, "n_layers": 2, "n_decoder_layers": 3})
    depth = {p.name.partition(".")[0]: p.depth for p in declared(model) if "blocks" not in p.name}
    assert depth == {
        "embedding": 0,
        "encoder_bias": 0,
        "encoder_norm": 2,
        "decoder_bias": 2,
        "decoder_norm": 6,
        "read_out": 6,
    }
    blocks = [p.depth for p in declared(model) if "blocks" in p.name]
    assert sorted(set(blocks)) == [1, 2, 3, 4, 5]
    assert blocks == sorted(blocks)


def test_a_part_without_layers_has_no_depth() -> None:
    block = build_model("gpt", device="meta", **SIZES).get_submodule("blocks.0")
    assert {p.depth for p in declared(block)} == {0}


RULES: list[tuple[dict[str, Any], Any]] = [
    ({"roles": ["embedding"]}, lambda p: p.spec.role == "embedding"),
    ({"depth": [0, 2]}, lambda p: p.depth <= 2),
    ({"roles": ["linear"], "depth": [2, 2]}, lambda p: p.spec.role == "linear" and p.depth == 2),
    ({"axes": ["mlp"]}, lambda p: "mlp" in p.spec.axes),
    ({"axes": ["mlp", "embed"], "roles": ["linear", "bias"]}, lambda p: set(p.spec.axes) >= {"mlp", "embed"}),
]


@pytest.mark.parametrize(("rule", "meant"), RULES, ids=[str(rule) for rule, _ in RULES])
def test_rules_are_conditions_that_all_hold(rule: dict[str, Any], meant: Any) -> None:
    model = build_model("gpt2", device="meta", **SIZES)
    expected = {p.name for p in declared(model) if meant(p)}
    freeze(model, [FreezeRule.model_validate(rule)])
    assert {p.name for p in Registry(model).frozen} == expected
    assert 0 < len(expected) < len(list(declared(model)))
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == expected


def groups(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in optimizer.param_groups:
        yield from ((name, group) for name in group["param_names"])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_rate_of_a_depth(form: dict[str, Any]) -> None:
    """lr decay^(L + 1 - k), of both optimizers where there are two; without decay one rate for all."""
    model = build_model("gpt", **SIZES)
    depth = {p.name: p.depth for p in declared(model)}
    flat, decayed = (build_optimizer(model, form, layer_decay=decay) for decay in (1.0, 0.5))
    before = {name: group["lr"] for name, group in groups(flat)}
    assert set(before.values()) == {form["lr"]}
    assert len(flat.param_groups) < len(decayed.param_groups)
    for name, group in groups(decayed):
        assert group["lr"] == before[name] * 0.5 ** (4 - depth[name])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_with_every_optimizer_and_resumed(folder: Path, form: dict[str, Any]) -> None:
    """Six steps are three and three; what is frozen keeps its bits; rates follow depth and schedule."""
    fields = tiny_fields(folder, steps=6, eval_every=3, checkpoint_every=3, monitor_every=None)
    fields |= {
        "model": {"from": str(folder / "runs/gpt")},
        "optimizer": form,
        "freeze": [{"depth": [0, 0]}, {"roles": ["linear"], "axes": ["mlp"], "depth": [1, 1]}],
        "layer_decay": 0.5,
    }
    if OPTIMIZERS[form["type"]](**form).uses_eta:
        fields["eta"] = "measured"
    if OPTIMIZERS[form["type"]].has_own_schedule:
        fields["schedule"] = {"type": "constant"}
    name = str(FORMS.index(form))
    whole = train(load_config({**fields, "name": f"whole-{name}"})).folder
    train(load_config({**fields, "name": f"parts-{name}"}), until=3)
    parts = train(load_config({**fields, "name": f"parts-{name}"}), resume=True).folder
    assert_same(whole, parts)
    before, after = (load_model(f).state_dict() for f in (folder / "runs/gpt", whole))
    same = {n for n in before if torch.equal(before[n], after[n])}
    assert same == {
        "embedding.weight",
        *(f"blocks.0.mlp.{matrix}.weight" for matrix in ("u", "nu", "down")),
    }
    assert of_kind(whole, "train")[-1]["lr"] == of_kind(parts, "train")[-1]["lr"]


@pytest.mark.parametrize("trunk", ["gpt", "bert", "ngpt"])
def test_lora_trains_a_head_as_a_whole(trunk: str) -> None:
    """Whether it is there from the beginning or split off; and the file of the result remembers."""
    fields: dict[str, Any] = {"type": "classifier", "classes": 2, "trunk": {"type": trunk, **SIZES}}
    made = build_model({"model": fields, "reparam": "lora"})
    parted = build_model({"model": fields})
    split(parted, "lora")
    for model in (made, parted):
        trained = {entry.name for entry in Registry(model)}
        head = {name for name in trained if name.startswith("head.")}
        assert head == {n for n, _ in model.named_parameters() if n.startswith("head.")}
        assert {name.rpartition("_")[2] for name in trained - head} == {"up", "down"}
    assert {e.name for e in Registry(made)} == {e.name for e in Registry(parted)}


def test_etas_are_those_of_the_file(folder: Path) -> None:
    """numpy reads the checkpoint; what was drawn, and zeros, keep the declared eta."""
    run = folder / "runs/gpt"
    file = find_checkpoint(run) / "model.safetensors"
    tensors = load_file(file)
    config = {"model": {"from": str(run)}, "eta": "measured", "optimizer": {"type": "amos", "lr": 0.1}}
    rows = {row.name: row for row in explain(load_config(config)).rows}
    for name, tensor in tensors.items():
        assert rows[name].eta == pytest.approx(np.sqrt(np.mean(tensor.astype(np.float64) ** 2)), rel=1e-12)
    head = {"type": "classifier", "classes": 2, "trunk": {"from": str(run)}}
    rows = {row.name: row for row in explain(load_config({**config, "model": head})).rows}
    declared_rows = {
        row.name: row for row in explain(load_config({**config, "model": head, "eta": "declared"})).rows
    }
    differing = {name for name in rows if rows[name].eta != declared_rows[name].eta}
    assert differing == {f"trunk.{name}" for name in tensors if "read_out" not in name}


def test_measured_on_top_of_a_conversion(folder: Path) -> None:
    """W's eta is smaller by the gate's, whose eta is its start; LoRA's new matrices keep theirs."""
    run, amos = str(folder / "runs/gpt"), {"type": "amos", "lr": 0.1}
    config = {"model": {"from": run}, "eta": "measured", "optimizer": amos, "reparam": "wesar"}
    rows = {row.name: row for row in explain(load_config(config)).rows}
    plain = {row.name: row for row in explain(load_config({**config, "reparam": "none"})).rows}
    for name, row in rows.items():
        if row.role == "linear":
            gate = rows[f"{name}_gate"].eta
            assert row.eta is not None
            assert gate is not None
            assert row.eta * gate == pytest.approx(plain[name].eta, rel=1e-6)
            assert row.eta == pytest.approx(4e-5**0.5, rel=1e-5)


def test_an_override_comes_after_the_measurement(folder: Path) -> None:
    model = build_model({"model": {"from": str(folder / "runs/gpt")}})
    found = measure(model, {p.name for p in declared(model)})
    config = load_config({"eta_overrides": [{"role": "embedding", "factor": 3.0}]})
    registry = Registry(model, None, config.eta_overrides, measured=found)
    assert registry["embedding.weight"].eta == 3 * found["embedding.weight"]
    assert registry["norm.scale"].eta == found["norm.scale"]


def test_zoo_explain_shows_it(folder: Path) -> None:
    config = {
        "model": {"from": str(folder / "runs/gpt")},
        "freeze": [{"roles": ["embedding"]}],
        "layer_decay": 0.5,
        "optimizer": {"type": "amos", "lr": 0.1},
    }
    explanation = explain(load_config(config))
    rows = {row.name: row for row in explanation.rows}
    table = rows["embedding.weight"]
    assert (table.lr, table.eta, table.slot, table.state_bytes, table.depth) == (None, None, None, 0, 0)
    assert [rows[n].lr for n in ("blocks.0.attention.q.weight", "blocks.1.attention.q.weight")] == [0.25, 0.5]
    assert rows["norm.scale"].lr == 1.0
    assert explanation.totals.frozen == 256 * 16
    assert json.loads(explanation.to_json())["rows"][0]["lr"] is None


def test_a_run_is_explained_without_its_origin(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With measured etas and a new reparameterisation, which were taken from weights that are gone.

    The folder that is named counts, and not the one in which the run began.
    """
    origin = tmp_path / "origin"
    shutil.copytree(folder / "runs/gpt", origin)
    fields = tiny_fields(folder, steps=2, runs_dir=str(tmp_path)) | {
        "name": "tuned",
        "schedule": "constant",
        "model": {"from": str(origin)},
        "optimizer": {"type": "amos", "lr": 0.01},
        "reparam": {"type": "wesar", "sigma2": 1e-3},
        "eta": "measured",
    }
    before, foreseen = explain(load_config(fields)), asdict(forecast(Job.of(load_config(fields)), 2))
    run = RunFolder(train(load_config(fields)).folder.rename(tmp_path / "moved"))
    shutil.rmtree(origin)
    assert explain(load_config(run.path), run) == before
    zoo("explain", run.path)
    capsys.readouterr()
    zoo("explain", run.path, "--ranks", "2", "--json")
    assert json.loads(capsys.readouterr().out) == foreseen


def test_two_ranks_compute_what_one_does(folder: Path) -> None:
    """Loaded whole, converted, measured, frozen in parts, and then sharded."""
    fields = tiny_fields(folder, steps=6, eval_every=3, checkpoint_every=6, accumulation=2)
    fields |= {
        "model": {"from": str(folder / "runs/gpt")},
        "optimizer": {"type": "amos", "lr": 0.01, "momentum": 0.9},
        "reparam": "wesar",
        "eta": "measured",
        "layer_decay": 0.5,
        "freeze": [{"depth": [1, 1]}],
    }
    one = train(load_config({**fields, "name": "one"})).folder
    train_on_two_ranks({**fields, "name": "two"})
    two = folder / "runs/two"
    left, right = load_model(one).state_dict(), load_model(two).state_dict()
    for name, tensor in left.items():
        torch.testing.assert_close(right[name], tensor, rtol=1e-4, atol=1e-6)
        assert "blocks.0." not in name or torch.equal(right[name], tensor)
    alone, together = (json.loads((run / "loaded.json").read_text()) for run in (one, two))
    for measured in ("measured_eta", "measured_sigma"):
        assert together.pop(measured) == pytest.approx(alone.pop(measured), rel=1e-6, abs=1e-9)
    assert together == alone
