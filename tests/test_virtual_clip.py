"""Clipping by the gradient of the virtual tensors: the same for every reparameterisation by gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import reproducible, tiny
from torch import nn
from two_ranks import on_two_ranks

from zoo import build_model, split
from zoo.init.freeze import FreezeRule, freeze
from zoo.models import Model
from zoo.optim.virtual_clip import VirtualNorm, VirtualNormConfig
from zoo.spec import Role, declared
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.step import global_norm
from zoo.utils.errors import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4}


def model_with_gradient(reparam: Any, **fields: Any) -> Model:
    """The same virtual tensors under every method, and the gradient of one batch, in float64."""
    init = {"type": "he", "embedding_scaling": False}
    model = build_model("gpt", **SIZES | fields, init=init, reparam="none", seed=3).double()
    if reparam != "none":
        split(model, reparam)
    tokens, targets = model.example(2, 12)
    torch.autograd.backward(model.loss(tokens, targets).total)
    return model


def gradients(model: Model) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def norm_of(model: Model, largest: float = 1.0) -> float:
    clip = VirtualNorm(largest)
    clip.prepare(model)
    return float(clip.norm(gradients(model)))


@pytest.mark.parametrize("fields", [{}, {"tied": True}, {"mlp": "gelu"}])
def test_the_norm_is_that_of_the_plain_model(fields: dict[str, Any]) -> None:
    """For any common sigma, where the norm of the trained tensors is several times as large."""
    expected = float(global_norm(p.grad for p in model_with_gradient("none", **fields).parameters()))
    for sigma2 in (4e-5, 1e-3):
        gated = model_with_gradient({"type": "wesar", "sigma2": sigma2}, **fields)
        assert norm_of(gated) == pytest.approx(expected, rel=1e-6)
        assert float(global_norm(p.grad for p in gated.parameters())) > 1.5 * expected


def test_one_factor_for_all_gradients() -> None:
    """Those of the gates, which do not count in the norm, included; nothing is scaled up."""
    model = model_with_gradient("wesar")
    before = {name: p.grad.clone() for name, p in gradients(model) if p.grad is not None}
    norm = norm_of(model)
    for largest, factor in [(0.5 * norm, 0.5), (2 * norm, 1.0)]:
        for name, p in gradients(model):
            p.grad = before[name].clone()
        clip = VirtualNormConfig().build(largest)
        clip.prepare(model)
        clip.clip(gradients(model), torch.tensor(1e9))
        for name, p in gradients(model):
            torch.testing.assert_close(p.grad, factor * before[name], rtol=1e-5, atol=0)


def test_a_gate_of_zero() -> None:
    model = model_with_gradient("wesar")
    gate = model.get_parameter("blocks.0.mlp.u.weight_gate")
    with torch.no_grad():
        gate.zero_()
    model.zero_grad()
    tokens, targets = model.example(2, 12)
    torch.autograd.backward(model.loss(tokens, targets).total)
    assert torch.isfinite(torch.tensor(norm_of(model)))


def test_a_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    """And it is another run than one that is clipped by the trained tensors."""
    settings: dict[str, Any] = {"clip_norm": 0.1, "steps": 6, "checkpoint_every": 2}
    clipped = tiny(tmp_path, "name=whole", "reparam=wesar", "train.clip=virtual", **settings)
    whole = train(clipped)
    parts = clipped.model_copy(update={"name": "parts"})
    train(parts, until=2)
    assert reproducible(train(parts, resume=True).folder) == reproducible(whole.folder)
    plain = train(tiny(tmp_path, "name=plain", "reparam=wesar", **settings))
    assert reproducible(plain.folder) != reproducible(whole.folder)


def on_ranks(world: World) -> None:
    norms = []
    for sharded in (False, True):
        model = build_model("gpt", **SIZES, init="he", reparam="wesar", seed=3)
        if sharded:
            world.shard(model)
        tokens, targets = model.example(2, 12)
        torch.autograd.backward(model.loss(tokens, targets).total)
        norms.append(norm_of(model))
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_two_ranks_are_one() -> None:
    on_two_ranks(on_ranks)


def test_gates_alone_have_no_norm() -> None:
    """It was found out in the first step, by an error about an empty list."""
    model = model_with_gradient("wesar")
    roles = {p.spec.role for p in declared(model)} - {Role.GATE}
    freeze(model, [FreezeRule(roles=tuple(roles))])
    with pytest.raises(ConfigError, match="virtual has no norm to clip by"):
        norm_of(model)


NGPT = "model={type: ngpt, vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2}"
BAD = [
    (["train.clip=virtual"], "train.clip: virtual has no effect: reparam is none"),
    (
        ["train.clip=virtual", "train.clip_norm=null", "reparam=wesar"],
        "virtual has no effect: clip_norm is null",
    ),
    (["train.clip=virtual", "reparam=weight_norm"], "virtual is for gates"),
    (
        ["train.clip=virtual", "reparam=wesar", NGPT],
        "nothing in this model is repara",
    ),
    (["train.clip=vitual"], "did you mean 'virtual'"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD)
def test_clipping_without_effect(overrides: list[str], message: str, tmp_path: Path) -> None:
    """One error, before a run folder is made and before the text is tokenised."""
    with pytest.raises(ConfigError, match=message):
        train(tiny(tmp_path, *overrides))
    assert not (tmp_path / "runs").exists() and not (tmp_path / "cache").exists()
