"""Every model x initialisation x reparameterisation x optimizer, tiny, two steps.

The registries drive it: whatever is registered is tested, and a model needs one line in `TINY`.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import pytest
import torch

from zoo import build_model, build_optimizer, merge
from zoo.config.registry import INITS, MODELS, OPTIMIZERS, REPARAMS
from zoo.init import Registry
from zoo.models import Model
from zoo.optim.lion import Lion
from zoo.optim.soap import SOAP
from zoo.optim.state import GLOBAL, load_state_by_name, state_by_name

DECODER: dict[str, Any] = {"vocab_size": 24, "d_model": 8, "n_layers": 1, "n_heads": 2}
TINY: dict[str, dict[str, Any]] = {
    "bert": DECODER,
    "classifier": {"classes": 3, "trunk": {"type": "bert", **DECODER}},
    "gpt": DECODER,
    "gpt-post": DECODER,
    "gpt2": DECODER,
    "lstm": {"vocab_size": 24, "d_model": 8, "d_memory": 12},
    "ngpt": DECODER,
    "ngpt-t5": DECODER,
    "resnet": {"depth": 18, "classes": 4, "width": 2, "stem_size": 3, "stem_stride": 1},
    "t5": DECODER,
}
"""The smallest form of each model."""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"weight_decay": 0.1}],
    "amos": [{"momentum": 0.9}, {"reduction": "none"}, {"reduction": "dense"}],
    "lion": [{"weight_decay": 0.1}],
    "prodigy": [{"d0": 0.1}],  # its own 1e-6 moves no gate of 55 in two steps
    "muon": [{"weight_decay": 0.1}, {"rest": {"type": "amos", "lr": 0.01}}],
}
"""Fields of the optimizers that have more than one form worth a test."""

Optimizer = tuple[str, dict[str, Any]]
OPTIMIZER_FORMS = [(name, f) for name in sorted(OPTIMIZERS.choices) for f in VARIANTS.get(name, [{}])]
WITHOUT_OPTIMIZER = list(
    itertools.product(sorted(MODELS.choices), sorted(INITS.choices), sorted(REPARAMS.choices))
)
PAIRWISE = {"ademamix", "lion", "mars", "normuon", "prodigy", "schedule_free", "soap"}
"""Optimizers that meet every model and every method, though not every pair of both."""
TRIPLES = list(
    enumerate(itertools.product(sorted(MODELS.choices), sorted(REPARAMS.choices), OPTIMIZER_FORMS))
)
WITH_OPTIMIZER = [
    (model, sorted(INITS.choices)[i % len(INITS.choices)], reparam, optimizer)
    for i, (model, reparam, optimizer) in TRIPLES
    if optimizer[0] not in PAIRWISE
    or "ZOO_FULL_GRID" in os.environ
    or (sorted(MODELS.choices).index(model) + len(optimizer[0])) % len(REPARAMS.choices)
    == sorted(REPARAMS.choices).index(reparam)
]
"""Every optimizer with every model and method; the initialisation goes round; ZOO_FULL_GRID=1 for all."""


def test_the_grid_is_whole() -> None:
    """Registering is what makes a component tested."""
    assert set(TINY) == set(MODELS.choices), "every model has a tiny form"
    assert set(VARIANTS) <= set(OPTIMIZERS.choices)
    assert len(WITHOUT_OPTIMIZER) == len(MODELS.choices) * len(INITS.choices) * len(REPARAMS.choices)
    used = {(model, init) for model, init, *_ in WITH_OPTIMIZER}
    assert len(used) == len(MODELS.choices) * len(INITS.choices)


SAME_START = [
    (model, reparam)
    for model, reparam in itertools.product(sorted(MODELS.choices), sorted(REPARAMS.choices))
    # A branch of a ResNet ends with a norm's scale, which starts at 1 whatever the scheme says:
    # only residual scaling makes it smaller.
    if REPARAMS[reparam].preserves_outputs and (model, reparam) != ("resnet", "residual")
]


@pytest.mark.parametrize(("name", "reparam"), SAME_START)
def test_methods_start_as_the_backbone(name: str, reparam: str) -> None:
    """What stands in front of the weights changes the training, not the model it starts from."""
    init = MODELS[name](**TINY[name]).default_init
    model, backbone = build(name, init, reparam).eval(), build(name, init, "none").eval()
    *inputs, _ = model.example(2, 8)
    logits = backbone(*inputs)
    torch.testing.assert_close(model(*inputs), logits, rtol=0, atol=1e-5 * logits.abs().max().item())


def build(model: str, init: str, reparam: str) -> Model:
    return build_model(model, **TINY[model], init=init, reparam=reparam, seed=1)


def steps(model: Model, optimizer: torch.optim.Optimizer, count: int) -> None:
    batch = model.example(2, 8)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model.loss(*batch, z_loss=1e-4).total
        torch.autograd.backward(loss)
        optimizer.step()
        assert math.isfinite(loss.item())


def two_steps(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Everything that is trained moves and stays finite, nothing else moves, spheres hold."""
    registry = Registry(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # SOAP's first step moves nothing, and Lion's second may undo the first.
    steps(model, optimizer, 3 if isinstance(optimizer, SOAP | Lion) else 2)
    for entry in registry:
        assert entry.parameter.isfinite().all(), entry.name
        assert not torch.equal(entry.parameter, before[entry.name]), f"{entry.name} did not move"
        if entry.sphere_dim is not None:
            norm = entry.parameter.norm(dim=entry.sphere_dim)
            torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-6, rtol=0)
    for frozen in registry.frozen:
        assert torch.equal(frozen.parameter, before[frozen.name]), f"{frozen.name} moved"


def merges(model: Model) -> None:
    report = merge(model)
    assert report.max_difference <= 1e-5 * report.max_logit
    assert not Registry(model).frozen


@pytest.mark.parametrize(("name", "init", "reparam"), WITHOUT_OPTIMIZER)
def test_two_steps_from_every_start(name: str, init: str, reparam: str) -> None:
    model = build(name, init, reparam)
    two_steps(model, build_optimizer(model, "adamw", lr=0.01))
    merges(model)


@pytest.mark.parametrize(
    ("name", "init", "reparam", "optimizer"),
    WITH_OPTIMIZER,
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_two_steps_of_every_optimizer(name: str, init: str, reparam: str, optimizer: Optimizer) -> None:
    kind, fields = optimizer
    model = build(name, init, reparam)
    built = build_optimizer(model, kind, lr=0.01, **fields)
    two_steps(model, built)
    registry, promised = Registry(model), OPTIMIZERS[kind](lr=0.01, **fields)
    for parameter, state in state_by_name(built).items():
        if parameter == GLOBAL:
            continue
        kept = {slot: tuple(tensor.shape) for slot, tensor in state.items() if slot != "step"}
        assert kept == promised.slots(registry[parameter])
    state_round_trip(model, built, optimizer)
    merges(model)


def state_round_trip(model: Model, built: torch.optim.Optimizer, optimizer: Optimizer) -> None:
    """A second optimizer that is given the state takes the same third step."""
    kind, fields = optimizer
    twin = build_model(model.recipe.model_dump())
    twin.load_state_dict(model.state_dict())
    other = build_optimizer(twin, kind, lr=0.01, **fields)
    load_state_by_name(other, state_by_name(built))
    steps(model, built, 1)
    steps(twin, other, 1)
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
