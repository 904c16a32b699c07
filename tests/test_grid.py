"""Every model x initialisation x reparameterisation x optimizer, tiny, two steps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from zoo import build_model, build_optimizer, merge
from zoo.init import Registry
from zoo.models import Model
from zoo.optim.state import load_state_by_name, state_by_name
from zoo.schema import INITS, MODELS, OPTIMIZERS, REPARAMS

SIZES: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2}
OPTIMIZER_FIELDS: dict[str, list[dict[str, Any]]] = {
    "amos": [{"momentum": 0.9}, {"reduction": "none"}, {"reduction": "dense"}],
    "adamw": [{"weight_decay": 0.1}],
}


def _optimizers() -> list[tuple[str, dict[str, Any]]]:
    names = sorted(OPTIMIZERS.choices)
    return [(name, fields) for name in names for fields in OPTIMIZER_FIELDS.get(name, [{}])]


GRID = list(itertools.product(sorted(MODELS.choices), sorted(INITS.choices), sorted(REPARAMS.choices)))


def test_the_grid_is_whole() -> None:
    """Registering is what makes a component tested."""
    assert len(GRID) == len(MODELS.choices) * len(INITS.choices) * len(REPARAMS.choices) >= 2 * 5 * 3
    assert {name for name, _ in _optimizers()} == set(OPTIMIZERS.choices)


@pytest.mark.parametrize(("model_name", "init", "reparam"), GRID)
def test_two_steps(model_name: str, init: str, reparam: str) -> None:
    for optimizer_name, fields in _optimizers():
        model = build_model(model_name, **SIZES, init=init, reparam=reparam, seed=1)
        optimizer = build_optimizer(model, optimizer_name, lr=0.01, **fields)
        registry = Registry(model)
        before = {e.name: e.parameter.detach().clone() for e in registry}
        tokens, targets = model.example(2, 8)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model.loss(tokens, targets, z_loss=1e-4).total
            torch.autograd.backward(loss)
            optimizer.step()
            assert math.isfinite(loss.item())
        for entry in registry:
            assert entry.parameter.isfinite().all(), entry.name
            assert not torch.equal(entry.parameter, before[entry.name]), f"{entry.name} did not move"
            if entry.sphere_dim is not None:
                norm = entry.parameter.norm(dim=entry.sphere_dim)
                torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-6, rtol=0)
        promised = OPTIMIZERS[optimizer_name](lr=0.01, **fields)
        for name, state in state_by_name(optimizer).items():
            kept = {slot: tuple(tensor.shape) for slot, tensor in state.items() if slot != "step"}
            assert kept == promised.slots(registry[name])
        _state_round_trip(model, optimizer, optimizer_name, fields)
        report = merge(model)
        assert report.max_difference <= 1e-5 * max(1.0, report.max_logit)


def _state_round_trip(
    model: Model, optimizer: torch.optim.Optimizer, name: str, fields: dict[str, Any]
) -> None:
    """A second optimizer that is given the state takes the same third step."""
    twin = build_model(model.recipe.model_dump(), device="cpu")
    twin.load_state_dict(model.state_dict())
    other = build_optimizer(twin, name, lr=0.01, **fields)
    load_state_by_name(other, state_by_name(optimizer))
    tokens, targets = model.example(2, 8)
    for m, o in ((model, optimizer), (twin, other)):
        o.zero_grad()
        torch.autograd.backward(m.loss(tokens, targets).total)
        o.step()
    for (parameter, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b), parameter
