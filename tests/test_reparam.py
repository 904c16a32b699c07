"""Gates: they change what is trained, not what is computed."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zoo
from zoo.checkpoint.recipe import Recipe, assemble
from zoo.init import He, Init, Registry
from zoo.models import Decoder, GPTConfig, Model, NGPTConfig
from zoo.reparam import (
    Conversion,
    LoRA,
    Multipliers,
    NoReparam,
    Reparam,
    ResidualScaling,
    SigmaReparam,
    WeightNormalization,
    WeSaR,
    merge,
    split,
)
from zoo.spec import Module, Role, declared
from zoo.utils.errors import ConfigError, ZooError

SIZES = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4}
METHODS: list[Reparam] = [NoReparam(), WeSaR(), WeSaR(sigma2=16e-5, train_gates=False), ResidualScaling()]


def build(
    reparam: Reparam, config: GPTConfig | NGPTConfig | None = None, init: Init | None = None
) -> Decoder:
    model = assemble(Recipe(model=config or GPTConfig(**SIZES), init=init or He(), reparam=reparam), 0)
    assert isinstance(model, Decoder)
    return model


def train(model: Model, steps: int, lr: float = 1e-3) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, eps=1e-16)
    tokens, targets = model.example(2, 12)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(tokens, targets).total)
        optimizer.step()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_same_function_at_the_start(method: Reparam, tied: bool) -> None:
    """Whatever stands in front, the model starts as the backbone says."""
    config = GPTConfig(**SIZES, tied=tied)
    model, backbone = build(method, config), build(NoReparam(), config)
    tokens, _ = model.example(2, 12)
    torch.testing.assert_close(model(tokens), backbone(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_merge_after_training(method: Reparam, tied: bool) -> None:
    """A plain model with the same logits; only the lookup factor of a tied table remains."""
    model = build(method, GPTConfig(**SIZES, tied=tied))
    train(model, 3)
    tokens, _ = model.example()
    before = model(tokens)
    report = merge(model)
    assert report.max_difference == (model(tokens) - before).abs().max().item()
    assert report.max_difference <= 1e-5 * report.max_logit
    assert not [e for e in Registry(model) if e.spec.role is Role.GATE or e.spec.scale != 1.0]
    gated = [m for m in model.modules() if getattr(m, "reparameterised", None)]
    assert gated == ([model.embedding] if tied else [])


def test_gates_train_only_when_told_to() -> None:
    trained = {n for n, _ in build(WeSaR()).named_parameters()} - {
        n for n, _ in build(WeSaR(train_gates=False)).named_parameters()
    }
    assert len(trained) == 7 * 2 + 2
    model = build(WeSaR())
    before = {e.name: e.parameter.item() for e in Registry(model) if e.spec.role is Role.GATE}
    train(model, 1)
    assert all(e.parameter.item() != before[e.name] for e in Registry(model) if e.name in before)


def test_update_under_adam_does_not_depend_on_sigma() -> None:
    """WeSaR, section 4.2: Adam's step of W. is the same for every sigma, so small sigma moves faster."""
    steps = {}
    for sigma2 in (1e-4, 4e-6):
        model = build(WeSaR(sigma2=sigma2))
        before = copy.deepcopy(model.state_dict())
        train(model, 1)
        steps[sigma2] = {n: p - before[n] for n, p in model.named_parameters() if p.dim() == 2}
    for name, step in steps[1e-4].items():
        if name != "embedding.weight":  # rows without a gradient have no sign
            agree = (step - steps[4e-6][name]).abs() < 1e-5
            assert agree.double().mean() > 0.99, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_merge_of_a_model_of_images_in_any_precision(dtype: torch.dtype) -> None:
    """Logits are compared with images in the model's precision; `split` adds gates in float32."""
    model = zoo.build_model("resnet", depth=18, classes=3, width=4, reparam="wesar").to(dtype)
    assert merge(model).tensors and {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_split_is_the_inverse() -> None:
    model = build(NoReparam(), init=He(embedding_scaling=False))
    train(model, 3)
    plain = copy.deepcopy(model.state_dict())
    report = split(model, WeSaR(), He())
    assert report.tensors == 7 * 2 + 2
    assert report.max_difference <= 1e-5 * report.max_logit
    for entry in Registry(model):
        if entry.spec.role is Role.LINEAR:
            assert entry.parameter.square().mean().sqrt().item() == pytest.approx((4e-5) ** 0.5, rel=1e-5)
    merge(model)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-6, atol=0)


def lookup_factor(model: nn.Module) -> float:
    embedding = model.get_submodule("embedding")
    assert isinstance(embedding, Module)
    return embedding.reparameterised["weight"].lookup


@pytest.mark.parametrize(
    "method",
    [
        WeSaR(),
        WeSaR(train_gates=False),
        WeightNormalization(start="rows"),
        Multipliers(),
        LoRA(),
        LoRA(roles=(Role.EMBEDDING,)),
        ResidualScaling(),
    ],
    ids=str,
)
def test_a_tied_table_keeps_its_lookup_factor(method: Reparam, tmp_path: Path) -> None:
    """In a plain model as well: it is no reparameterisation in the way of another."""
    model = build(NoReparam(), GPTConfig(**SIZES, tied=True))
    factor = lookup_factor(model)
    assert factor > 1
    tokens, _ = model.example(2, 12)
    outputs = model(tokens).detach()
    changes: list[Callable[[Model], Conversion]] = [functools.partial(zoo.split, reparam=method), zoo.merge]
    for i, change in enumerate(changes):
        report = change(model)
        assert report.max_difference <= 1e-5 * report.max_logit
        zoo.save_model(model, tmp_path / str(i))
        for m in (model, zoo.load_model(tmp_path / str(i))):
            torch.testing.assert_close(m(tokens), outputs, rtol=1e-4, atol=1e-5)
            assert lookup_factor(m) == factor


def test_split_refuses() -> None:
    with pytest.raises(ZooError, match="reparameterised already, or multiplied by a fixed factor"):
        split(build(WeSaR()), WeSaR(), He())
    plain = build(NoReparam(), init=He(embedding_scaling=False))
    for method in (NoReparam(), SigmaReparam()):
        with pytest.raises(ZooError, match=f"reparam '{method.type}' cannot take over a model's weights"):
            split(plain, method, He())
    nn.init.zeros_(plain.get_parameter("read_out.matrix.weight"))
    with pytest.raises(ZooError, match=r"a tensor of zeros has no scale: read_out\.matrix\.weight"):
        split(plain, WeSaR(), He())


@pytest.mark.parametrize("method", [LoRA(), ResidualScaling(), Multipliers()], ids=lambda method: method.type)
def test_matrices_of_zeros_are_split_by_methods_that_need_no_scale(method: Reparam) -> None:
    plain = build(NoReparam(), init=He(embedding_scaling=False))
    for block in range(2):
        nn.init.zeros_(plain.get_parameter(f"blocks.{block}.mlp.down.weight"))
    tokens, _ = plain.example(2, 12)
    outputs = plain(tokens).detach()
    split(plain, method, He())
    torch.testing.assert_close(plain(tokens), outputs)


LEFT_OUT: list[tuple[Reparam, dict[str, Any], int, set[str]]] = [
    (WeSaR(), {}, 16, set()),
    (WeSaR(), {"tied": True}, 15, set()),
    (WeSaR(), {"s_nu": {"kind": "fixed"}}, 14, {"mlp.nu"}),
    (WeSaR(), {"s_z": {"kind": "fixed"}}, 15, {"read_out.matrix"}),
    (WeSaR(), {"s_z": {"kind": "fixed"}, "tied": True}, 14, {"embedding"}),
    (WeSaR(), {"qk_norm": False}, 15, {"embedding"}),
    (WeSaR(), {"qk_norm": False, "s_qk": {"kind": "fixed"}}, 11, {"embedding", "attention.q", "attention.k"}),
    (ResidualScaling(), {}, 4, set()),
]
"""Method, fields of an nGPT, how many of its matrices get no gate, and which get one."""


@pytest.mark.parametrize(("method", "fields", "count", "gated"), LEFT_OUT)
def test_gates_that_change_nothing_are_left_out_and_announced(
    method: WeSaR | ResidualScaling,
    fields: dict[str, Any],
    count: int,
    gated: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = build(method, NGPTConfig(**SIZES, **fields))
    assert len(caplog.records) == 1
    assert f"reparam '{method.type}': nothing on {count} matrices on the sphere" in caplog.records[0].message
    gates = {e.name for e in Registry(model) if e.spec.role is Role.GATE}
    assert {re.sub(r"blocks\.\d+\.", "", name).removesuffix(".weight_gate") for name in gates} == gated


IDLE: list[tuple[WeSaR | ResidualScaling, dict[str, Any], set[str]]] = [
    (WeSaR(), {"qk_norm": True}, {"attention.q", "attention.k"}),
    (WeSaR(), {"qk_norm": True, "qkv_bias": True}, set()),
    (WeSaR(), {"norms": "after"}, {"attention.v", "attention.o", "mlp.u", "mlp.down"}),
    (ResidualScaling(), {"norms": "both"}, {"attention.o", "mlp.down"}),
    (ResidualScaling(), {"qk_norm": True}, set()),
    (WeSaR(), {}, set()),
]
"""Method, fields of a GPT, and the matrices whose factors a norm cancels."""


@pytest.mark.parametrize(("method", "fields", "idle"), IDLE)
def test_gates_in_front_of_a_norm_are_announced(
    method: WeSaR | ResidualScaling,
    fields: dict[str, Any],
    idle: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In float64: seven times as large a factor, with the same logits; every other one changes them."""
    model = build(method, GPTConfig(**SIZES, norm_eps=1e-30, **fields)).double().eval()
    warning = f"reparam '{method.type}': the factors of {2 * len(idle)} matrices"  # in two blocks
    assert [r.message.startswith(warning) for r in caplog.records] == [True] * bool(idle)
    for p in [p for p in declared(model) if p.spec.role is Role.BIAS]:
        nn.init.normal_(p.parameter)
    tokens, _ = model.example(2, 12)
    before = model(tokens)
    for p in [p for p in declared(model) if p.local in p.module.reparameterised]:
        with torch.no_grad():
            p.parameter.mul_(7)
            changed = (model(tokens) - before).abs().max().item()
            p.parameter.div_(7)
        cancelled = re.sub(r"blocks\.\d+\.", "", p.name).removesuffix(".weight") in idle
        assert (changed < 1e-9) if cancelled else (changed > 1e-6), p.name


LSTM: dict[str, Any] = {"type": "lstm", "vocab_size": 31, "d_model": 16, "d_memory": 32}


def test_a_method_that_finds_no_tensor_is_refused(tmp_path: Path) -> None:
    """An LSTM declares no ends of residual branches; an old checkpoint that names the method can be read."""
    with pytest.raises(ConfigError, match=r"reparam 'residual' finds no tensor to act on .* type 'lstm'"):
        zoo.build_model({"model": LSTM, "reparam": "residual"})
    model = zoo.build_model({"model": LSTM})
    with pytest.raises(ZooError, match=r"split: reparam 'residual' finds no tensor to act on .* type 'lstm'"):
        zoo.split(model, "residual")
    model.recipe = model.recipe.model_copy(update={"reparam": ResidualScaling()})
    zoo.save_model(model, tmp_path / "old")
    assert zoo.load_model(tmp_path / "old").recipe.reparam == ResidualScaling()


@pytest.mark.parametrize("fields", [{}, {"tied": True}, {"update": "slerp"}, {"n_kv_heads": 2}])
def test_the_scale_of_what_is_declared_normalised_has_no_effect(fields: dict[str, Any]) -> None:
    """In float64: seven times as large, with the same logits; what is only rescaled does change them."""
    model = build(NoReparam(), NGPTConfig(**SIZES, **fields)).double().eval()
    tokens, _ = model.example(2, 12)
    before = model(tokens)
    for p in [p for p in declared(model) if p.spec.normalised or p.spec.rescaled]:
        with torch.no_grad():
            p.parameter.mul_(7)
            changed = (model(tokens) - before).abs().max().item()
            p.parameter.div_(7)
        assert (changed < 1e-12) if p.spec.normalised else (changed > 1e-3), p.name


def test_gates_survive_deepcopy_and_state_dict() -> None:
    model = build(WeSaR())
    train(model, 2)
    clone = copy.deepcopy(model)
    fresh = build(WeSaR())
    fresh.load_state_dict(model.state_dict())
    tokens, _ = model.example()
    assert torch.equal(clone(tokens), model(tokens))
    assert torch.equal(fresh(tokens), model(tokens))
