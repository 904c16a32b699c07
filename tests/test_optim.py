"""Groups, schedules, the projection after the step, and state by name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from zoo import Registry, build_model, build_optimizer
from zoo.config.registry import OPTIMIZERS, SCHEDULES
from zoo.optim import AdamWConfig, Amos, AmosConfig, load_state_by_name, state_by_name
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.train.live_memory import LiveMemory
from zoo.utils.errors import CheckpointError, ConfigError

SIZES: dict[str, Any] = {"vocab_size": 11, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 6}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """One step with made-up gradients, the same for the same names and seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()


def test_adamw_decays_matrices_only_and_is_torchs() -> None:
    model = build_model("gpt", **SIZES, reparam="wesar", init="he")
    registry = Registry(model)
    optimizer = AdamWConfig(lr=0.01, weight_decay=0.1).build(registry)
    assert type(optimizer) is torch.optim.AdamW
    decays = {n: g["weight_decay"] for g in optimizer.param_groups for n in g["param_names"]}
    assert decays == {e.name: 0.1 if e.decays else 0.0 for e in registry}
    assert set(decays.values()) == {0.0, 0.1}
    assert all(g["fused"] for g in optimizer.param_groups)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "adamw"},
        {"type": "adamw", "decays": "all"},
        {"type": "adamw", "decays": "all", "cautious": True},
        {"type": "mars"},
        {"type": "soap"},
        {"type": "normuon", "rest": {"type": "adamw", "lr": 0.01, "weight_decay": 0.1, "decays": "all"}},
    ],
)
def test_explain_shows_what_the_weight_decay_acts_on(optimizer: dict[str, Any]) -> None:
    """It showed that of AdamW on matrices for every optimizer and setting."""
    config = load_config(
        {
            "model": {"type": "gpt", **SIZES},
            "init": "he",
            "reparam": "wesar",
            "optimizer": {"lr": 0.01, "weight_decay": 0.1, **optimizer},
        }
    )
    model = build_model("gpt", **SIZES, reparam="wesar", init="he")
    assert config.optimizer is not None
    acts_on: dict[str, bool] = {}
    for group in config.optimizer.build(Registry(model)).param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            of_vectors = "weight_decay_1d" in group and parameter.dim() != 2
            acts_on[name] = bool(group["weight_decay_1d" if of_vectors else "weight_decay"])
    assert {row.name: row.decays for row in explain(config).rows} == acts_on
    assert acts_on["norm.scale"] == (optimizer["type"] == "mars" or "all" in str(optimizer))


@pytest.mark.parametrize("reduction", ["none", "one_axis", "dense"])
def test_amos_groups_are_the_registrys(reduction: Any) -> None:
    model = build_model("gpt", **SIZES, reparam="wesar", init="he")
    registry = Registry(model)
    optimizer = build_optimizer(model, "amos", lr=0.01, reduction=reduction, momentum=0.9)
    assert isinstance(optimizer, Amos)
    for group in optimizer.param_groups:
        for name in group["param_names"]:
            assert group["eta"] == registry[name].eta
            assert group["reduce"] == registry[name].reduce(reduction)
    step(model, optimizer)
    for entry in registry:
        assert tuple(optimizer.state[entry.parameter]["v"].shape) == entry.slot_shape(reduction)


def test_every_option_of_the_config_reaches_amos() -> None:
    model = build_model("gpt", **SIZES)
    options = {
        "lr": 0.02,
        "beta": 0.98,
        "momentum": 0.9,
        "clip_value": 1.0,
        "extra_l2": 0.1,
        "c_coef": 0.5,
        "d_coef": 0.6,
        "fused": True,
    }
    of_slots_and_eta = {"reduction", "scaling_eta", "scaling_slots"}
    assert set(AmosConfig.model_fields) == {*options, "type", *of_slots_and_eta}
    for group in build_optimizer(model, {"type": "amos", **options}).param_groups:
        assert {k: group[k] for k in options} == options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": 0.1, "beta": 1.0}, "beta"),
        ({"lr": 0.1, "momentum": 0.0}, "momentum"),
        ({"lr": 0.1, "clip_value": 0.0}, "clip_value"),
        ({"lr": 0.1, "reduction": "both"}, "reduction"),
        ({"lr": 0.1, "weight_decay": 0.1}, "weight_decay"),
        ({}, "lr"),
    ],
)
def test_bad_fields_of_a_config_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer\.{message}"):
        build_optimizer(build_model("gpt", **SIZES), "amos", **fields)


def test_no_parameters_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no parameters"):
        AmosConfig(lr=0.1).build([])


SCHEDULED = [
    ({"type": "constant"}, [1, 1, 1, 1]),
    ({"type": "constant", "warmup": 2}, [0.5, 1, 1, 1]),
    ({"type": "linear"}, [1, 0.75, 0.5, 0.25]),
    ({"type": "linear", "warmup": 2}, [0.5, 1, 2 / 3, 1 / 3]),
    ({"type": "linear", "warmup": 4}, [0.25, 0.5, 0.75, 1]),
    ({"type": "linear", "final": 0.2}, [1, 0.8, 0.6, 0.4]),
    ({"type": "linear-restart", "after": 2}, [1, 0.5, 0.5, 0.25]),
    ({"type": "linear-restart", "after": 3, "warmup": 2}, [0.5, 1, 0.5, 1 / 3]),
    ({"type": "cosine"}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ({"type": "cosine", "final": 0.5, "warmup": 3}, [1 / 3, 2 / 3, 1, 0.75]),
    ({"type": "rsqrt", "warmup": 2}, [0.5, 1, math.sqrt(2 / 3), math.sqrt(0.5)]),
    ({"type": "rsqrt"}, [1, math.sqrt(1 / 2), math.sqrt(1 / 3), 0.5]),
    ({"type": "wsd", "decay": 0.5}, [1, 1, 1, 0.5]),
    ({"type": "wsd", "decay": 1.0}, [1, 0.75, 0.5, 0.25]),
]


@pytest.mark.parametrize(("fields", "expected"), SCHEDULED, ids=str)
def test_schedules(fields: dict[str, Any], expected: list[float]) -> None:
    """Every step's rate, as a torch scheduler sets it: the first one moves, so does the last."""
    theta = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([theta], lr=2.0)
    scheduler = SCHEDULES[fields["type"]](**fields).build(optimizer, total_steps=4)
    rates = []
    for _ in expected:
        rates.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(SCHEDULES.choices))
def test_schedules_are_defined_beyond_the_run_and_refuse_one_that_ends_in_warm_up(name: str) -> None:
    required = {"linear-restart": {"after": 5}}
    schedule = SCHEDULES[name](warmup=3, **required.get(name, {}))
    assert all(0 <= schedule.factor(done, 10) <= 1 for done in range(100))
    with pytest.raises(ConfigError, match=r"schedule\.(warmup 3|after 5).* 2 steps"):
        schedule.build(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), total_steps=2)


def test_adamw_cont_is_linear_to_200k_and_then_linear_to_300k() -> None:
    """Amos, Figure 1a: as if the finished run had been one of 300k steps, from 200k on."""
    continued = SCHEDULES["linear-restart"](warmup=10_000, after=200_000)
    linear = SCHEDULES["linear"](warmup=10_000)
    for done in (0, 5_000, 9_999, 100_000, 199_999):
        assert continued.factor(done, 300_000) == linear.factor(done, 200_000)
    for done in (200_000, 250_000, 299_999):
        assert continued.factor(done, 300_000) == linear.factor(done, 300_000)
    assert continued.factor(200_000, 300_000) / continued.factor(199_999, 300_000) > 50_000


def test_adamw_rsqrt_is_adamw_up_to_the_end_of_the_warm_up() -> None:
    """Amos, Figure 1a: the same value at step 10k, in proportion to t^-1/2 beyond."""
    rsqrt, linear = SCHEDULES["rsqrt"](warmup=10_000), SCHEDULES["linear"](warmup=10_000)
    assert all(rsqrt.factor(done, 300_000) == linear.factor(done, 300_000) for done in (0, 17, 9_999))
    assert [rsqrt.factor(done - 1, 300_000) for done in (40_000, 90_000)] == pytest.approx([1 / 2, 1 / 3])


def test_spheres_hold_after_every_step_of_any_optimizer() -> None:
    for name in sorted(OPTIMIZERS.choices):
        model = build_model("ngpt", **SIZES)
        optimizer = build_optimizer(model, name, lr=0.1)
        step(model, optimizer)
        on_spheres = [e for e in Registry(model) if e.sphere_dim is not None]
        assert {e.sphere_dim for e in on_spheres} == {0, 1}
        for e in on_spheres:
            norms = e.parameter.detach().norm(dim=e.sphere_dim)
            torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)


OPTIONS = {
    "adamw": {"type": "adamw", "lr": 0.01},
    "adamw-unfused": {"type": "adamw", "lr": 0.01, "fused": False},
    "adam": {"type": "adam", "lr": 0.01},
    "adafactor": {"type": "adafactor", "lr": 0.01},
    "muon": {"type": "muon", "lr": 0.01},
    "muon-amos": {"type": "muon", "lr": 0.01, "rest": {"type": "amos", "lr": 0.02, "momentum": 0.9}},
    "amos": {"type": "amos", "lr": 0.01},
    "amos-momentum": {"type": "amos", "lr": 0.01, "momentum": 0.9, "reduction": "none"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("steps", [0, 2])
def test_state_by_name_goes_to_another_optimizer(options: dict[str, Any], steps: int) -> None:
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, options)
    for i in range(steps):
        step(model, optimizer, i)
    state = state_by_name(optimizer)
    assert set(state) == {n for n, _ in model.named_parameters()}
    other = copy.deepcopy(model)
    loaded = build_optimizer(other, options)
    load_state_by_name(loaded, copy.deepcopy(state))
    for m, o in ((model, optimizer), (other, loaded)):
        step(m, o, 7)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_state_of_an_optimizer_that_has_stepped_is_not_made_again(options: dict[str, Any]) -> None:
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, options)
    step(model, optimizer)
    with LiveMemory() as memory:
        state = state_by_name(optimizer)
    assert memory.peak <= 8, "the count of a step beside slots without memory"
    for name, parameter in model.named_parameters():
        slots = optimizer.state[parameter]
        assert state[name].keys() == slots.keys()
        assert all(state[name][slot] is slots[slot] for slot in slots)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_torchs_state_dict_goes_to_another_optimizer(options: dict[str, Any]) -> None:
    model = build_model("ngpt", **SIZES)
    optimizer = build_optimizer(model, options)
    step(model, optimizer)
    other = copy.deepcopy(model)
    loaded = build_optimizer(other, options)
    step(other, loaded, 3)
    other.load_state_dict(model.state_dict())
    for group in optimizer.param_groups:
        group["lr"] /= 2
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [g["lr"] for g in loaded.param_groups] == [g["lr"] for g in optimizer.param_groups]
    for m, o in ((model, optimizer), (other, loaded)):
        step(m, o, 7)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_state_that_does_not_belong_is_refused_and_changes_nothing() -> None:
    model = build_model("gpt", **SIZES)
    adamw, amos = build_optimizer(model, OPTIONS["adamw"]), build_optimizer(model, OPTIONS["amos"])
    step(model, adamw)
    good = state_by_name(adamw)
    first = next(iter(good))
    without = {n: s for n, s in good.items() if n != first}
    with pytest.raises(
        CheckpointError, match=rf"not that of this AdamW: missing: {first}/exp_avg, {first}/exp_avg_sq"
    ):
        load_state_by_name(adamw, without)
    with pytest.raises(CheckpointError, match=r"unexpected: stranger/v$"):
        load_state_by_name(adamw, {**good, "stranger": {"v": torch.zeros(1)}})
    with pytest.raises(
        CheckpointError, match=r"not that of this Amos: missing: .*/b, .*unexpected: .*/exp_avg"
    ):
        load_state_by_name(amos, good)
    wrong = {**good, first: {**good[first], "exp_avg": torch.zeros(1)}}
    with pytest.raises(CheckpointError, match=rf"{first}/exp_avg has shape \(1,\), expected \(11, 8\)"):
        load_state_by_name(adamw, wrong)
    assert state_by_name(adamw)[first]["exp_avg"] is good[first]["exp_avg"]
    with pytest.raises(CheckpointError, match=r"the SGD does not know the names .* `model.named_parameters"):
        state_by_name(torch.optim.SGD(model.parameters()))
