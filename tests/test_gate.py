"""A step whose gradient is not finite changes no weight and no slot, although nobody has read it yet."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_waits import QUIET, behind
from tiny_runs import tiny
from torch import Tensor, nn
from two_ranks import on_two_ranks

from zoo import Model, build_model, build_optimizer
from zoo.config.registry import OPTIMIZERS
from zoo.nn.loss import LossParts
from zoo.optim.amos_step import eager_step
from zoo.optim.clip import Clip
from zoo.optim.optimizer import ZooOptimizer
from zoo.optim.state import changing, tensors_in
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.step import Stepper
from zoo.utils.errors import DivergenceError
from zoo.utils.sharded import local

ALONE = World(0, 1, torch.device("cpu"))
SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 12, "n_layers": 1, "n_heads": 2, "d_mlp": 7}
MODELS: dict[str, dict[str, Any]] = {
    "ngpt": {"source": "ngpt"},
    "wesar": {"source": "gpt", "init": "he", "reparam": "wesar"},
    "spectral": {"source": "gpt", "init": "he", "reparam": "sigma_reparam"},
    "clipped": {"source": "gpt", "attention": {"qk_clip": 1e-3}},
    "hyperball": {"source": "gpt", "constraint": "hyperball"},
}
"""All that follows a step of the optimizer: projection, gates, measurements, QK-clip, a norm that is kept."""
BY_THEMSELVES: dict[str, dict[str, Any]] = {
    "sgd": {"type": "torch.optim.SGD", "fused": True, "momentum": 0.9},
    "amos": {"type": "amos", "reduction": "dense"},
    "amos with momentum": {"type": "amos", "momentum": 0.9, "clip_value": 0.5},
    "amos joined": {"type": "amos"},
    "amos joined with momentum": {"type": "amos", "momentum": 0.9},
    "cautious adamw": {"type": "adamw", "cautious": True},
    "cautious lion": {"type": "lion", "cautious": True},
    "cautious muon": {"type": "muon", "cautious": True},
    "soap that turns its bases": {"type": "soap", "precondition_frequency": 1},
    "muon and amos": {"type": "muon", "rest": {"type": "amos", "lr": 0.01}},
}
COPIED: dict[str, dict[str, Any]] = {
    "adamw of separate operations": {"type": "adamw", "fused": False},
    "muon and adamw of separate operations": {
        "type": "muon",
        "rest": {"type": "adamw", "lr": 0.01, "fused": False},
    },
    "adagrad": {"type": "torch.optim.Adagrad"},
    "rmsprop": {"type": "torch.optim.RMSprop", "momentum": 0.9, "centered": True},
    "asgd": {"type": "torch.optim.ASGD"},
}
KINDS = {**{kind: {"type": kind} for kind in OPTIMIZERS.choices}, **BY_THEMSELVES, **COPIED}
FOLLOWED = ("adamw", "amos", "muon", "adafactor", "adagrad")
"""Those that are tried with every model, the others with nGPT."""
CASES = [
    *(("ngpt", kind) for kind in KINDS),
    *((name, kind) for name in MODELS if name != "ngpt" for kind in FOLLOWED),
]


def optimizer_of(model: Model, name: str) -> torch.optim.Optimizer:
    """The optimizer; Amos joined as on a GPU, which on a CPU no configuration asks for."""
    optimizer = build_optimizer(model, {"lr": 0.01, **KINDS[name]})
    for group in optimizer.param_groups if "joined" in name else ():
        group["foreach"] = True
    return optimizer


def stepper(model: Model, optimizer: torch.optim.Optimizer, world: World = ALONE) -> Stepper:
    return Stepper(model, model.loss, optimizer, world, 1, "fp32", Clip(1.0), 0.0)


def take(step: Stepper, seed: int, pending: bool = True) -> None:
    """A step, of which nothing is read before it is taken unless asked for."""
    tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(seed))
    step.update(step.gradient((tokens[:, :-1], tokens[:, 1:]), lambda: False), pending=pending)


def spoilt(step: Stepper) -> Stepper:
    """The same with a loss whose gradients are no numbers."""

    def loss(*batch: Tensor, **options: Any) -> LossParts:
        parts = step.loss(*batch, **options)
        return parts._replace(total=parts.total * math.nan)

    return replace(step, loss=loss)


def state(step: Stepper) -> dict[str, Tensor]:
    """Copies of this rank's weights, buffers and slots; without the count that the host of zoo's keeps."""
    tensors = {**dict(step.model.named_parameters()), **dict(step.model.named_buffers())}
    names: dict[Tensor, str] = {parameter: name for name, parameter in step.model.named_parameters()}
    counts = "/step" if isinstance(step.optimizer, ZooOptimizer) else "no count"
    for parameter, slots in step.optimizer.state.items():
        tensors |= {f"{names[parameter]}{path}": tensor for path, tensor in tensors_in(slots)}
    return {name: local(t.detach()).clone() for name, t in tensors.items() if not name.endswith(counts)}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_step_that_is_not_finite_changes_nothing(name: str, kind: str) -> None:
    """Neither where the loss is no number, nor where one entry of a gradient is infinite."""
    model = build_model(**MODELS[name], **SIZES, seed=0)
    step = stepper(model, optimizer_of(model, kind))
    for seed in range(3):
        take(step, seed)
    before, attributes = state(step), copy.deepcopy(changing(step.optimizer)["attributes"])
    take(spoilt(step), 3)
    assert_equal(state(step), before)
    first = next(model.parameters())
    with first.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor(0), math.inf)):  # type: ignore[no-untyped-call]
        take(step, 3)
    assert_equal(state(step), before)
    assert changing(step.optimizer)["attributes"] == attributes
    take(step, 4)
    assert all(tensor.isfinite().all() for tensor in state(step).values())
    assert not torch.equal(first, before[next(name for name, _ in model.named_parameters())])


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_finite_steps_are_those_that_are_waited_for(name: str, kind: str) -> None:
    states = []
    for pending in (True, False):
        model = build_model(**MODELS[name], **SIZES, seed=0)
        step = stepper(model, optimizer_of(model, kind))
        for seed in range(3):
            take(step, seed, pending)
        states.append(state(step))
    assert_equal(*states)


def on_shards(world: World) -> None:
    kinds = {
        "ngpt": ("adamw", "amos joined with momentum", "muon", "adafactor", "adagrad"),
        "wesar": ("amos",),
    }
    for name, of_model in kinds.items():
        for kind in of_model:
            model = build_model(**MODELS[name], **SIZES, seed=0)
            world.shard(model)
            step = stepper(model, optimizer_of(model, kind), world)
            take(step, 0)
            before = state(step)
            take(spoilt(step), 1)
            assert_equal(state(step), before)
            take(step, 1)
            assert all(tensor.isfinite().all() for tensor in state(step).values())


def test_on_shards() -> None:
    on_two_ranks(on_shards)


def test_the_kernel_for_processors_is_undone_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not ask whether the step is left out; here it is the step of separate operations."""
    monkeypatch.setattr("zoo.optim.amos.fused_step", eager_step)
    model = build_model("ngpt", **SIZES, seed=0)
    step = stepper(model, optimizer_of(model, "amos"))
    for group in step.optimizer.param_groups:
        group["fused"] = True
    take(step, 0)
    before = state(step)
    take(spoilt(step), 1)
    assert_equal(state(step), before)
    take(step, 1)
    assert not torch.equal(next(model.parameters()), next(iter(before.values())))


@pytest.mark.parametrize("kind", ["adamw", "amos", "muon", "torch.optim.Adagrad"])
def test_what_a_run_does_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It computes the next gradient, reads that of the step, and ends with the weights before it."""
    behind(monkeypatch)
    backward, update = Stepper.backward, Stepper.update
    weights: list[list[Tensor]] = []
    models: list[nn.Module] = []

    def watched(self: Stepper, *args: Any) -> Tensor:
        models.append(self.model)
        return backward(spoilt(self) if len(models) == 23 else self, *args)

    def recorded(self: Stepper, *args: Any, **options: Any) -> None:
        weights.append([p.detach().clone() for p in self.model.parameters()])
        update(self, *args, **options)

    monkeypatch.setattr(Stepper, "backward", watched)
    monkeypatch.setattr(Stepper, "update", recorded)
    with pytest.raises(DivergenceError, match="step 23: "):
        train(tiny(tmp_path, *QUIET, f"optimizer={{type: {kind}, lr: 0.01}}"))
    assert (len(models), len(weights)) == (24, 23)
    assert all(map(torch.equal, models[-1].parameters(), weights[-1]))
