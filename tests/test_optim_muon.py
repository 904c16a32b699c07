"""Muon with another optimizer for the rest: who trains what, and that together they are one."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from test_grid import TINY
from torch import nn

from zoo import Registry, build_model, build_optimizer
from zoo.config.registry import MODELS, SCHEDULES
from zoo.init import Entry, EtaOverride
from zoo.models import Model
from zoo.nn.sphere import project
from zoo.optim import Amos, Combined, Muon, MuonConfig
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.spec import Role
from zoo.utils.errors import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 23, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 6}
HIDDEN = {
    "gpt": ["attention.q", "attention.k", "attention.v", "attention.o", "mlp.u", "mlp.nu", "mlp.down"],
    "ngpt": ["attention.q", "attention.k", "attention.v", "attention.o", "mlp.u", "mlp.nu", "mlp.down"],
}
AMOS = {"type": "amos", "lr": 0.02, "momentum": 0.9}


def trained_by_muon(optimizer: torch.optim.Optimizer) -> list[str]:
    assert isinstance(optimizer, Combined)
    muon, *_ = optimizer.parts
    assert isinstance(muon, Muon)
    return [name for group in muon.param_groups for name in group["param_names"]]


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("tied", [False, True])
def test_blocks_matrices_and_no_others(name: str, tied: bool) -> None:
    model = build_model(name, **SIZES, tied=tied)
    optimizer = build_optimizer(model, "muon", lr=0.01)
    assert trained_by_muon(optimizer) == [f"blocks.0.{part}.weight" for part in HIDDEN[name]]
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", sorted(MODELS.choices))
def test_in_every_model_inputs_outputs_and_vectors_are_left_to_the_rest(name: str) -> None:
    """The read-out is what has as many entries along an axis as there are logits; an image has 3 channels."""
    outputs = {"classes": 5} if "classes" in TINY[name] else {"vocab_size": 23}
    model = build_model(name, **(TINY[name] | outputs))
    inputs = model.example(2, 8)[:-1]
    (count,) = outputs.values()
    assert model(*inputs).shape[-1] == count
    by_muon = set(trained_by_muon(build_optimizer(model, "muon", lr=0.01)))
    for entry in Registry(model):
        kernel = entry.spec.role in (Role.LINEAR, Role.CONV)
        hidden = kernel and count not in entry.spec.shape and 3 not in entry.spec.shape[:2]
        assert (entry.name in by_muon) == hidden, entry.name


def by_hand(entries: Iterable[Entry], hidden: set[str], lr: float) -> list[torch.optim.Optimizer]:
    """torch's Muon and torch's AdamW, decay on matrices."""
    groups: dict[str, list[nn.Parameter]] = {"hidden": [], "decayed": [], "rest": []}
    for entry in entries:
        part = "hidden" if entry.name in hidden else "decayed" if entry.decays else "rest"
        groups[part].append(entry.parameter)
    muon = torch.optim.Muon(groups["hidden"], lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    rest = [
        {"params": groups["decayed"], "weight_decay": 0.1},
        {"params": groups["rest"], "weight_decay": 0.0},
    ]
    return [muon, torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95))]


@pytest.mark.parametrize("name", ["gpt", "ngpt"])
def test_under_a_schedule_it_is_torchs_muon_and_torchs_adamw(name: str) -> None:
    """20 steps in float64, on nGPT with the projection after each."""
    model = build_model(name, **SIZES, reparam="wesar", init="he").double()
    twin = copy.deepcopy(model)
    ours = build_optimizer(model, "muon", lr=0.02, weight_decay=0.1)
    registry = Registry(twin)
    theirs = by_hand(registry, set(trained_by_muon(ours)), 0.02)
    schedule = SCHEDULES["cosine"](warmup=3)
    scheduler = schedule.build(ours, 20)
    for i in range(20):
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            generator = torch.Generator().manual_seed(i)
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            q.grad = p.grad.clone()
        ours.step()
        scheduler.step()
        for optimizer in theirs:
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * schedule.factor(i, 20)
            optimizer.step()
        project((e.parameter, e.sphere_dim) for e in registry if e.sphere_dim is not None)
    for (parameter, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg=parameter)


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int) -> float:
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.loss(*model.example(4, 16)).total
        torch.autograd.backward(loss)
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("rest", [None, AMOS, {"type": "adamw", "lr": 0.01}])
def test_ngpt_learns_with_it(rest: dict[str, Any] | None) -> None:
    model = build_model("ngpt", **SIZES)
    optimizer = build_optimizer(model, "muon", lr=0.02, rest=rest)
    assert train(model, optimizer, 40) < 0.85 * train(build_model("ngpt", **SIZES), optimizer, 1)


def test_amos_has_its_eta_for_the_rest() -> None:
    model = build_model("gpt", **SIZES)
    registry = Registry(model)
    optimizer = build_optimizer(model, "muon", lr=0.01, rest=AMOS)
    assert isinstance(optimizer, Combined)
    _, amos = optimizer.parts
    assert isinstance(amos, Amos)
    etas = {name: g["eta"] for g in amos.param_groups for name in g["param_names"]}
    assert etas == {e.name: e.eta for e in registry if e.name not in trained_by_muon(optimizer)}
    assert {g["lr"] for g in amos.param_groups} == {0.02}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adjust": "original"}, r"optimizer: .*expected `rest: \{type: adamw, lr: \.\.\.\}`"),
        ({"rest": {"type": "adamw"}}, r"optimizer\.rest\.lr: missing"),
        ({"rest": {"type": "muon", "lr": 0.1}}, r"optimizer\.rest\.type: value 'muon'"),
        ({"rest": {"type": "amos", "lr": 0.1, "eps": 1e-6}}, r"optimizer\.rest\.eps: unknown key"),
        ({"ns_steps": 0}, r"optimizer\.ns_steps"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"optimizer": {"type": "muon", "lr": 0.01, **fields}})


def test_overrides_of_eta_need_a_rest_that_uses_them() -> None:
    overrides = [{"role": "embedding", "eta": 1.0}]
    fields = {"model": {"type": "gpt", **SIZES}, "eta_overrides": overrides}
    muon = {"type": "muon", "lr": 0.01}
    assert load_config({**fields, "optimizer": {**muon, "rest": AMOS}}).eta_overrides
    with pytest.raises(ConfigError, match="eta_overrides have no effect"):
        load_config({**fields, "optimizer": muon})


def test_a_model_without_hidden_matrices_is_refused() -> None:
    embedding = [e for e in Registry(build_model("gpt", **SIZES)) if e.spec.role is Role.EMBEDDING]
    with pytest.raises(ConfigError, match="muon is for hidden matrices, and the model has none"):
        MuonConfig(lr=0.1).build(embedding)


def test_explain_counts_one_average_of_hidden_matrices_and_two_of_the_rest() -> None:
    fields = {"model": {"type": "gpt", **SIZES}, "optimizer": {"type": "muon", "lr": 0.01}}
    table = explain(load_config(fields))
    hidden = {f"blocks.0.{part}.weight" for part in HIDDEN["gpt"]}
    for row in table.rows:
        entries = torch.Size(row.shape).numel()
        assert row.state_bytes == entries * (4 if row.name in hidden else 8)
    assert table.totals.optimizer_bytes == sum(row.state_bytes or 0 for row in table.rows)


def test_a_copy_of_the_optimizer_is_whole() -> None:
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, "muon", lr=0.01, rest=AMOS)
    train(model, optimizer, 2)
    twin, loaded = copy.deepcopy((model, optimizer))
    train(model, optimizer, 2)
    train(twin, loaded, 2)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_override_of_what_muon_trains_is_refused() -> None:
    model = build_model("gpt", **SIZES)
    of_kernels = EtaOverride(role=Role.LINEAR, axes=("mlp",), factor=2.0)
    with pytest.raises(ConfigError, match=r"eta_overrides\[0\] has no effect: this optimizer reads no eta"):
        build_optimizer(model, "muon", lr=0.02, rest=AMOS, eta_overrides=[of_kernels])
    of_tables = EtaOverride(role=Role.EMBEDDING, factor=2.0)
    build_optimizer(model, "muon", lr=0.02, rest=AMOS, eta_overrides=[of_tables])
