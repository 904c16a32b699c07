"""Model x initialisation x reparameterisation x constraint x optimizer x clip, tiny, two steps.

The registries drive it: whatever is registered is tested, and a model needs one line in `TINY`. Every pair of
choices is in some case; ``ZOO_FULL_GRID=1 pytest tests/test_grid.py`` has every triple. A case trains two
steps, resumes and merges, or is refused before any work for the reason that `refusal` gives.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from zoo import build_model, build_optimizer, merge
from zoo.config.registry import CLIPS, CONSTRAINTS, INITS, MODELS, OPTIMIZERS, REPARAMS
from zoo.init import Entry, Registry
from zoo.models import Model
from zoo.optim.clip import Clip
from zoo.optim.lion import Lion
from zoo.optim.soap import SOAP
from zoo.optim.state import GLOBAL, load_state_by_name, state_by_name
from zoo.spec import Module, ParamSpec, Role, declared
from zoo.train.step import global_norm
from zoo.utils.errors import ConfigError

DECODER: dict[str, Any] = {"vocab_size": 24, "d_model": 8, "n_layers": 1, "n_heads": 2}
TINY: dict[str, dict[str, Any]] = {
    "bert": DECODER,
    "classifier": {"classes": 3, "trunk": {"type": "bert", **DECODER}},
    "gpt": DECODER,
    "gpt-post": DECODER,
    "gpt2": DECODER,
    "neox": {**DECODER, "rope_fraction": 0.5},
    "modernbert": DECODER,
    "lstm": {"vocab_size": 24, "d_model": 8, "d_memory": 12},
    "ngpt": DECODER,
    "ngpt-t5": DECODER,
    "resnet": {"depth": 18, "classes": 4, "width": 2, "stem_size": 3, "stem_stride": 1},
    "t5": DECODER,
}
"""The smallest form of each model."""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"weight_decay": 0.1}, {}, {"cautious": True}],
    "amos": [{"momentum": 0.9}, {"reduction": "none"}, {"reduction": "dense"}],
    "lion": [{"weight_decay": 0.1}],
    "prodigy": [{"d0": 0.1, "eps": 1e-15}],  # with its own, small gradients move no gate of 55 in two steps
    "soap": [{"weight_decay": 0.0}],
    "muon": [
        {"weight_decay": 0.1},
        {"cautious": True, "coefficients": "polar_express"},
        {"rest": {"type": "amos", "lr": 0.01}},
    ],
}
"""Fields of the optimizers that have more than one form worth a test."""

NEEDS_DIRECTIONS = ("weight_norm", "sigma_reparam")
"""Methods that divide a matrix by a norm of it."""

Optimizer = tuple[str, dict[str, Any]]
OPTIMIZER_FORMS = [(name, f) for name in sorted(OPTIMIZERS.choices) for f in VARIANTS.get(name, [{}])]
Case = tuple[str, str, str, str, Optimizer, str]
FACTORS: list[list[Any]] = [
    sorted(MODELS.choices),
    sorted(INITS.choices),
    sorted(REPARAMS.choices),
    sorted(CONSTRAINTS.choices),
    OPTIMIZER_FORMS,
    sorted(CLIPS.choices),
]
STRENGTH = 3 if "ZOO_FULL_GRID" in os.environ else 2


def covering(sizes: Sequence[int], strength: int) -> list[tuple[int, ...]]:
    """Cases, as indices of choices, in which every `strength` choices of different factors meet.

    Each case starts from a combination that has not occurred; for each other factor the choice is taken that
    adds most, of equals the one used least.
    """
    groups = list(itertools.combinations(range(len(sizes)), strength))
    missing = {
        (group, choice)
        for group in groups
        for choice in itertools.product(*(range(sizes[factor]) for factor in group))
    }
    used: Counter[tuple[int, int]] = Counter()
    cases = []
    for first in sorted(missing):
        if first not in missing:
            continue
        case = dict(zip(*first, strict=True))
        for factor in sorted(set(range(len(sizes))) - set(case), key=lambda f: -sizes[f]):
            own = [g for g in groups if factor in g and set(g) - {factor} <= set(case)]

            gains = []
            for choice in range(sizes[factor]):
                whole = {**case, factor: choice}
                new = sum((g, tuple(whole[f] for f in g)) in missing for g in own)
                gains.append((new, -used[factor, choice], -choice))
            case[factor] = -max(gains)[2]
        missing -= {(g, tuple(case[f] for f in g)) for g in groups}
        used.update(case.items())
        cases.append(tuple(case[f] for f in range(len(sizes))))
    return cases


CASES: list[Case] = [
    tuple(choices[i] for choices, i in zip(FACTORS, case, strict=True))
    for case in covering([len(choices) for choices in FACTORS], STRENGTH)
]


def test_the_grid_is_whole() -> None:
    """Registering is what makes a component tested, with every other one."""
    assert set(TINY) == set(MODELS.choices), "every model has a tiny form"
    assert set(VARIANTS) <= set(OPTIMIZERS.choices)
    for a, b in itertools.combinations(range(len(FACTORS)), 2):
        met = {(repr(case[a]), repr(case[b])) for case in CASES}
        assert len(met) == len(FACTORS[a]) * len(FACTORS[b])


def plain_specs(name: str) -> list[ParamSpec]:
    return [p.spec for p in declared(build_model(name, **TINY[name], device="meta"))]


def refusal(name: str, reparam: str, constraint: str, optimizer: Optimizer) -> str | None:
    """Why a combination is refused, from the declarations alone; None: it is not."""
    kind, fields = optimizer
    specs = plain_specs(name)
    if reparam == "multipliers" and any(s.normalised and s.role in (Role.LINEAR, Role.CONV) for s in specs):
        return "normalised next"
    if reparam == "residual" and all(s.residual_branches == 1 for s in specs):
        return "finds no tensor to act on"
    if reparam in NEEDS_DIRECTIONS and any(s.start == 0 and s.role is Role.LINEAR for s in specs):
        return "starts at 0"
    if constraint == "none":
        return "running statistics" if (name, kind) == ("resnet", "schedule_free") else None
    if reparam in ("lora", "peft") or any(s.start == 0 and s.role in (Role.LINEAR, Role.CONV) for s in specs):
        return "at zero"
    free = [s for s in specs if s.role in (Role.LINEAR, Role.CONV) and s.sphere is None]
    config = OPTIMIZERS[kind](lr=0.01, **fields)
    if not free:  # all are on nGPT's sphere: the constraint is idle
        return None
    if getattr(config, "weight_decay", 0):
        return "optimizer.weight_decay"
    reason: str | None = config.not_under_fixed_norm()
    return reason


SAME_START = [
    (model, reparam)
    for model, reparam in itertools.product(sorted(MODELS.choices), sorted(REPARAMS.choices))
    # A branch of a ResNet ends with a norm's scale, which starts at 1 whatever the scheme says:
    # only residual scaling makes it smaller.
    if REPARAMS[reparam].preserves_outputs
    and (model, reparam) != ("resnet", "residual")
    and refusal(model, reparam, "none", ("adamw", {})) is None
]


@pytest.mark.parametrize(("name", "reparam"), SAME_START)
def test_methods_start_as_the_backbone(name: str, reparam: str) -> None:
    """What stands in front of the weights changes the training, not the model it starts from."""
    init = MODELS[name](**TINY[name]).default_init
    model, backbone = build(name, init, reparam).eval(), build(name, init, "none").eval()
    *inputs, _ = model.example(2, 8)
    logits = backbone(*inputs)
    torch.testing.assert_close(model(*inputs), logits, rtol=0, atol=1e-5 * logits.abs().max().item())


def build(model: str, init: str, reparam: str, constraint: str = "none") -> Model:
    return build_model(model, **TINY[model], init=init, reparam=reparam, constraint=constraint, seed=1)


def steps(model: Model, optimizer: torch.optim.Optimizer, count: int, clip: Clip) -> None:
    batch = model.example(2, 8)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model.loss(*batch, z_loss=1e-4).total
        torch.autograd.backward(loss)
        gradients = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        clip.clip(gradients, global_norm(p.grad for _, p in gradients))
        optimizer.step()
        assert math.isfinite(loss.item())


def module_of(entry: Entry) -> Module:
    assert isinstance(entry.owner, Module)
    return entry.owner


def two_steps(model: Model, optimizer: torch.optim.Optimizer, clip: Clip) -> None:
    """Everything that is trained moves and stays finite, nothing else moves, spheres and norms hold."""
    registry = Registry(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # SOAP's first step moves nothing, and Lion's second may undo the first.
    steps(model, optimizer, 3 if isinstance(optimizer, SOAP | Lion) else 2, clip)
    for entry in registry:
        assert entry.parameter.isfinite().all(), entry.name
        # A gate in front of a normalisation has no gradient but rounding.
        idle = entry.spec.role is Role.GATE and any(s.normalised for s in module_of(entry).specs.values())
        assert idle or not torch.equal(entry.parameter, before[entry.name]), f"{entry.name} did not move"
        if entry.sphere_dim is not None:
            norm = entry.parameter.norm(dim=entry.sphere_dim)
            torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-6, rtol=0)
        if entry.spec.keeps_norm:
            torch.testing.assert_close(entry.parameter.norm(), before[entry.name].norm(), atol=0, rtol=1e-6)
    for frozen in registry.frozen:
        assert torch.equal(frozen.parameter, before[frozen.name]), f"{frozen.name} moved"


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join((*case[:4], case[4][0], case[5])))
def test_every_combination_trains_or_is_refused(case: Case) -> None:
    name, init, reparam, constraint, optimizer, clipping = case
    kind, fields = optimizer
    reason = refusal(name, reparam, constraint, optimizer)
    if reason is not None:
        with pytest.raises(ConfigError, match=re.escape(reason)):
            build_optimizer(build(name, init, reparam, constraint), kind, lr=0.01, **fields)
        return
    model, clip = build(name, init, reparam, constraint), CLIPS[clipping]().build(1.0)
    gated = any(m.reparameterised for m in model.modules() if isinstance(m, Module))
    if clipping == "virtual" and not (gated and reparam in ("none", "wesar", "residual")):
        with pytest.raises(ConfigError, match=r"train\.clip: virtual"):
            clip.prepare(model)
        return
    clip.prepare(model)
    built = build_optimizer(model, kind, lr=0.01, **fields)
    two_steps(model, built, clip)
    registry, promised = Registry(model), OPTIMIZERS[kind](lr=0.01, **fields)
    for parameter, state in state_by_name(built).items():
        if parameter == GLOBAL:
            continue
        kept = {slot: tuple(t.shape) for slot, t in state.items() if slot not in ("step", "radius")}
        assert kept == promised.slots(registry[parameter])
        assert ("radius" in state) == registry[parameter].spec.keeps_norm
    # A second optimizer that is given the state takes the same third step.
    twin = build(name, init, reparam, constraint)
    twin.load_state_dict(model.state_dict())
    other, again = build_optimizer(twin, kind, lr=0.01, **fields), CLIPS[clipping]().build(1.0)
    again.prepare(twin)
    load_state_by_name(other, state_by_name(built))
    again.load(clip.state())
    steps(model, built, 1, clip)
    steps(twin, other, 1, again)
    for (key, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    report = merge(model)
    assert report.max_difference <= 1e-5 * report.max_logit
    assert not Registry(model).frozen
