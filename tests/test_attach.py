"""`zoo.attach`: an optimizer built by hand keeps the model what it declares to be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from zoo import Registry, attach, build_model, build_optimizer
from zoo.models import Model
from zoo.optim.attach import spheres
from zoo.utils.errors import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 24, "d_model": 8, "n_layers": 1, "n_heads": 2, "seed": 0}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, zoo_model: Model) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(zoo_model.loss(*zoo_model.example(2, 8)).total)
    optimizer.step()


def largest_error(model: nn.Module) -> float:
    """How far the norm of any vector on a sphere is from 1."""
    return max(float((p.detach().norm(dim=dim) - 1).abs().max()) for _, p, dim in spheres(model))


def test_torchs_adamw_leaves_the_sphere_unless_it_is_attached() -> None:
    model = build_model("ngpt", **SIZES)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step(model, plain, model)
    assert largest_error(model) > 1e-4
    attach(plain, model)
    step(model, plain, model)
    assert largest_error(model) < 1e-6
    expected = [e.name for e in Registry(model) if e.sphere_dim is not None]
    assert [name for name, *_ in spheres(model)] == expected


@pytest.mark.parametrize("reparam", ["sigma_reparam", "weight_norm"])
def test_it_is_what_build_optimizer_does_however_often(reparam: str) -> None:
    """The spectral norm is measured once a step, not twice: the numbers are those of `build_optimizer`."""
    models = [build_model("gpt", **SIZES, reparam=reparam) for _ in range(2)]
    built = build_optimizer(models[0], "adamw", lr=1e-2, fused=False)
    by_hand = torch.optim.AdamW(groups_like(built, models))
    for _ in range(3):
        attach(by_hand, models[1])
    attach(built, models[0])
    for _ in range(3):
        step(models[0], built, models[0])
        step(models[1], by_hand, models[1])
    for (name, a), b in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def groups_like(optimizer: torch.optim.Optimizer, models: list[Model]) -> list[dict[str, Any]]:
    """The groups of `optimizer`, with the second model's parameters in the place of the first's."""
    twin = dict(zip(models[0].parameters(), models[1].parameters(), strict=True))
    return [{**group, "params": [twin[p] for p in group["params"]]} for group in optimizer.param_groups]


def test_a_copy_is_attached_anew() -> None:
    """torch copies no hooks: a copy leaves the sphere unless it is attached; then it is as the original."""
    model = build_model("ngpt", **SIZES)
    optimizer = build_optimizer(model, "adamw", lr=1e-2)
    step(model, optimizer, model)
    copied, left = copy.deepcopy((model, optimizer)), copy.deepcopy((model, optimizer))
    attach(copied[1], copied[0])
    for net, made in ((model, optimizer), copied, left):
        step(net, made, net)
    assert largest_error(copied[0]) < 1e-6 < 1e-4 < largest_error(left[0])
    for (name, p), q in zip(model.named_parameters(), copied[0].parameters(), strict=True):
        assert torch.equal(p, q), name


def test_a_module_that_contains_a_model() -> None:
    """A head of plain torch around it, and only some of its parameters trained."""
    model = build_model("ngpt", **SIZES)
    whole = nn.Sequential(model, nn.Linear(24, 3))
    optimizer = torch.optim.SGD(whole.parameters(), lr=1.0)
    attach(optimizer, whole)
    step(whole, optimizer, model)
    assert largest_error(whole) < 1e-6
    assert largest_error(model) < 1e-6


def test_what_is_not_the_models_is_refused() -> None:
    model, other = build_model("ngpt", **SIZES), build_model("gpt", **SIZES)
    with pytest.raises(ConfigError, match="the SGD trains no parameter of this model"):
        attach(torch.optim.SGD(other.parameters()), model)
    name, missing, _ = next(spheres(model))
    some = torch.optim.SGD([p for p in model.parameters() if p is not missing])
    with pytest.raises(ConfigError, match=rf"the SGD does not train {name}, which .* on a sphere"):
        attach(some, model)
    with pytest.raises(ConfigError, match="does not train"):  # a refusal does not count as attached
        attach(some, model)
