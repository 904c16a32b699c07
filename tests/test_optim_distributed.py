"""Two gloo ranks with unevenly sharded parameters do what a single process does."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer
from zoo.checkpoint.recipe import declare
from zoo.init import initialise
from zoo.kernels.matmul import BFLOAT16
from zoo.models import Model
from zoo.nn.sphere import project
from zoo.optim import Adafactor, Muon, load_state_by_name, state_by_name
from zoo.optim.sharding import reduced_placements
from zoo.run.train_config import ParallelConfig
from zoo.train.distributed import World
from zoo.train.step import global_norm
from zoo.utils.sharded import gathered, is_sharded, whole

TOLERANCE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
ROUNDED: dict[str, Any] = TOLERANCE if BFLOAT16 else {"rtol": 1e-6, "atol": 1e-3}
"""Tolerance of weights with Muon. On a processor without instructions for bfloat16 gradients of two ranks can
differ in the last bit, which Newton-Schulz may round the other way."""
SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 12, "n_layers": 1, "n_heads": 2, "d_mlp": 7}
MODELS: dict[str, dict[str, Any]] = {"ngpt": {}, "gpt": {"init": "he", "reparam": "wesar"}}
AMOS: list[tuple[str, float | None, str]] = [
    ("none", None, "eager"),
    ("one_axis", 0.9, "eager"),
    ("dense", 0.9, "eager"),
    ("none", 0.9, "fused"),
    ("one_axis", None, "fused"),
    ("dense", None, "fused"),
    ("none", 0.9, "joined"),
    ("one_axis", 0.9, "joined"),
    ("dense", None, "joined"),
]
"""Every reduction and every step with and without momentum; the slots of both do not depend on each other."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"type": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "adam": {"type": "adam", "lr": 0.01, "weight_decay": 0.1},
    "adafactor": {"type": "adafactor", "lr": 0.01},
    "muon": {"type": "muon", "lr": 0.01, "weight_decay": 0.1},
    "muon-amos": {"type": "muon", "lr": 0.01, "rest": {"type": "amos", "lr": 0.01, "momentum": 0.9}},
    **{
        f"amos-{mode}-{momentum}-{path}": {
            "type": "amos",
            "lr": 0.02,
            "reduction": mode,
            "momentum": momentum,
            "clip_value": 0.5,
            "fused": path == "fused",
        }
        for mode, momentum, path in AMOS
    },
}
CASES = sorted(
    {*zip(itertools.cycle(MODELS), OPTIMIZERS, strict=False)}
    | {*itertools.product(MODELS, ("adamw", "muon", "amos-one_axis-0.9-eager"))}
)
"""Every optimizer on one of the models, spheres or gates, and one of each kind on both."""


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int, clip: float) -> list[Tensor]:
    """A few clipped steps on made-up tokens; returns the norms of the gradients."""
    norms = []
    for step in range(steps):
        tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(step))
        torch.autograd.backward(model.loss(tokens[:, :-1], tokens[:, 1:]).total)
        norms.append(global_norm(p.grad for p in model.parameters()))
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip, norms[-1])
        optimizer.step()
        optimizer.zero_grad()
    return norms


def built(model: Model, optimizer_name: str) -> torch.optim.Optimizer:
    """The optimizer; Amos joined as on a GPU, which on a CPU no configuration asks for."""
    optimizer = build_optimizer(model, OPTIMIZERS[optimizer_name])
    for group in optimizer.param_groups if optimizer_name.endswith("joined") else ():
        group["foreach"] = True
    return optimizer


def compare(ours: World, model_name: str, optimizer_name: str) -> None:
    """Raise unless sharded and whole training agree, in weights, slots and norms."""
    single = build_model(model_name, **SIZES, **MODELS[model_name], seed=0)
    sharded = copy.deepcopy(single)
    ours.shard(sharded)
    shards = {p.to_local().shape for p in sharded.parameters() if isinstance(p, DTensor)}
    assert ours.copies > 1 or any(shape[0] in (6, 7) for shape in shards), f"even shards: {shards}"
    optimizers = [built(m, optimizer_name) for m in (single, sharded)]
    # Newton-Schulz rounds to bfloat16: gradients must be the same bit for bit, so they are not scaled.
    clip = math.inf if "muon" in optimizer_name else 0.5
    norms = [train(m, o, 4, clip) for m, o in zip((single, sharded), optimizers, strict=True)]
    torch.testing.assert_close(norms[1], norms[0], rtol=5e-6, atol=0.0)  # sums of squares in another order
    tolerance = ROUNDED if "muon" in optimizer_name else TOLERANCE
    agree(sharded, optimizers[1], single, optimizers[0], tolerance)

    saved = {n: gathered(slots) for n, slots in state_by_name(optimizers[1]).items()}
    again, resumed = copy.deepcopy(single), build_model(model_name, **SIZES, **MODELS[model_name], seed=1)
    resumed.load_state_dict(again.state_dict())
    ours.shard(resumed)
    restored = [built(m, optimizer_name) for m in (again, resumed)]
    for optimizer in restored:
        load_state_by_name(optimizer, saved)
    for m, o in zip((again, resumed), restored, strict=True):
        train(m, o, 2, clip)
    agree(resumed, restored[1], again, restored[0], tolerance)


def agree(
    sharded: nn.Module,
    sharded_optimizer: torch.optim.Optimizer,
    single: nn.Module,
    optimizer: torch.optim.Optimizer,
    tolerance: dict[str, Any],
) -> None:
    for (name, a), b in zip(sharded.named_parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(whole(a.detach()), b.detach(), **tolerance, msg=name)
    states = state_by_name(sharded_optimizer), state_by_name(optimizer)
    for name, slots in states[1].items():
        for slot, value in slots.items():
            found = whole(states[0][name][slot])
            torch.testing.assert_close(found, value, **tolerance, msg=f"{name}/{slot}")


def project_both_axes(ours: World) -> None:
    """The norm over a sharded axis is that of all ranks."""
    assert ours.mesh is not None
    weight = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    for dim, sharded_dim in itertools.product((0, 1), (0, 1)):
        part = distribute_tensor(weight.clone(), ours.mesh, [Shard(sharded_dim)])
        project([(part, dim)])
        expected = weight / weight.norm(dim=dim, keepdim=True)
        torch.testing.assert_close(part.full_tensor(), expected, **TOLERANCE)


def initialise_shards(ours: World) -> None:
    """Filled after sharding, from meta, a model starts from the weights of a single process."""
    for name, recipe in MODELS.items():
        single = build_model(name, **SIZES, **recipe, seed=3)
        late = declare(single.recipe)
        ours.shard(late)
        late.to_empty(device="cpu")
        initialise(late, single.recipe.init, seed=3)
        for (local, a), b in zip(late.named_parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(whole(a.detach()), b.detach(), **TOLERANCE, msg=local)


def more_than_two_dimensions(ours: World) -> None:
    """Adafactor and Muon on the rows of a convolution, sharded over either of two axes."""
    assert ours.mesh is not None
    start = torch.randn(7, 5, 3, 2, generator=torch.Generator().manual_seed(0))
    for kind, dim in itertools.product((Adafactor, Muon), (0, 2, 3)):
        whole_one = nn.Parameter(start.clone())
        part = nn.Parameter(distribute_tensor(start.clone(), ours.mesh, [Shard(dim)]))
        optimizers = [kind([p], lr=0.1) for p in (whole_one, part)]
        for step in range(3):
            gradient = torch.randn(start.shape, generator=torch.Generator().manual_seed(step))
            whole_one.grad = gradient
            part.grad = distribute_tensor(gradient.clone(), ours.mesh, [Shard(dim)])
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(whole(part.detach()), whole_one.detach(), **TOLERANCE)


def hybrid(ours: World) -> None:
    """Two copies of a model, each on one rank, are trained as one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    copies = World(ours.rank, ours.size, ours.device, mesh)
    for model_name, optimizer_name in (("ngpt", "muon"), ("gpt", "amos-one_axis-0.9-eager")):
        compare(copies, model_name, optimizer_name)


def bfloat16_gathers(ours: World) -> None:
    """Weights that are gathered in bfloat16 give losses near those of float32, and float32 gradients."""
    losses = []
    for gather in ("float32", "bfloat16"):
        parallel = ParallelConfig.model_validate({"gather": gather, "reshard_after_forward": False})
        model = build_model("ngpt", **SIZES, seed=0)
        World(ours.rank, ours.size, ours.device, ours.mesh, parallel).shard(model)
        tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(model.loss(tokens[:, :-1], tokens[:, 1:]).total)
        torch.autograd.backward(losses[-1])
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    torch.testing.assert_close(*losses, atol=0.02, rtol=0)


def weights_are_freed_after_an_evaluation(ours: World) -> None:
    """Those of every unit, which a forward pass without a backward pass leaves gathered."""
    parallel = ParallelConfig.model_validate({"reshard_after_forward": False})
    world = World(ours.rank, ours.size, ours.device, ours.mesh, parallel)
    model = build_model("gpt", **SIZES, seed=0)
    world.shard(model)
    tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.loss(tokens[:, :-1], tokens[:, 1:])
    assert not all(map(is_sharded, model.parameters()))
    world.reshard(model)
    assert all(map(is_sharded, model.parameters()))


def all_cases(ours: World) -> None:
    """On one rank."""
    hybrid(ours)
    bfloat16_gathers(ours)
    weights_are_freed_after_an_evaluation(ours)
    project_both_axes(ours)
    initialise_shards(ours)
    more_than_two_dimensions(ours)
    for model_name, optimizer_name in CASES:
        try:
            compare(ours, model_name, optimizer_name)
        except Exception as error:
            raise AssertionError(f"{model_name} with {optimizer_name}") from error


def test_two_ranks_equal_one() -> None:
    on_two_ranks(all_cases)


def test_a_placement_that_no_optimizer_expects() -> None:
    sums: Any = SimpleNamespace(placements=[Partial()])
    with pytest.raises(ValueError, match=r"cannot optimize a parameter placed as \[Partial"):
        reduced_placements(sums, (0,))
