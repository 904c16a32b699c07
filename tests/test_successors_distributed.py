"""Every registered optimizer on two gloo ranks with unevenly sharded parameters: as a single process."""

from typing import Any

import pytest
import torch
from torch import Tensor
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer
from zoo.config.registry import OPTIMIZERS
from zoo.models import Model
from zoo.optim import load_state_by_name, state_by_name
from zoo.optim.state import flatten, unflatten
from zoo.train.distributed import World
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import gathered, whole

CASES: list[dict[str, Any]] = [
    {"type": "adam", "weight_decay": 0.1},
    {"type": "adamw", "weight_decay": 0.1},
    {"type": "adafactor"},
    {"type": "amos"},
    {"type": "muon", "adjust": "match_adam"},
    {"type": "adamw", "cautious": True, "weight_decay": 0.1},
    {"type": "lion", "weight_decay": 0.1},
    {"type": "lion", "cautious": True},
    {"type": "ademamix", "alpha_warmup": 3, "beta3_warmup": 3},
    {"type": "mars"},
    {"type": "schedule_free", "warmup_steps": 2},
    {"type": "prodigy", "lr": 1.0, "d0": 1e-2},
    {"type": "muon", "coefficients": "polar_express", "split_heads": True},
    {"type": "muon", "cautious": True},
    {"type": "normuon", "split_heads": True},
]

REFUSED = {"soap": "SOAP: parameter group 0: sharded parameters"}
"""What cannot be sharded, and the beginning of what it says."""


def model_of() -> Model:
    return build_model("gpt", vocab_size=13, d_model=12, n_layers=1, n_heads=2, d_mlp=7, seed=0)


def take(model: Model, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(seed))
        torch.autograd.backward(model.loss(tokens[:, :-1], tokens[:, 1:]).total)
        optimizer.step()


def weights(model: Model) -> list[Tensor]:
    return [whole(p.detach()).clone() for p in model.parameters()]


def on_ranks(world: World) -> None:
    """Three steps; then the state of the ranks goes on in one process, and does what they do."""
    for fields in CASES:
        settings = {"lr": 0.01, **fields}
        alone, sharded = model_of(), model_of()
        world.shard(sharded)
        ours, theirs = build_optimizer(alone, settings), build_optimizer(sharded, settings)
        take(alone, ours, range(3))
        take(sharded, theirs, range(3))
        # An all-reduce rounds otherwise; where an average is near 0, the sign of an update may differ.
        for a, b in zip(weights(alone), weights(sharded), strict=True):
            far = (a - b).abs() > 1e-4
            assert far.sum() <= 2, fields
        tensors, structure = flatten(state_by_name(theirs))
        state = unflatten(gathered(tensors), structure)
        continued = model_of()
        with torch.no_grad():
            for p, value in zip(continued.parameters(), weights(sharded), strict=True):
                p.copy_(value)
        again = build_optimizer(continued, settings)
        load_state_by_name(again, state)
        take(sharded, theirs, range(3, 4))
        take(continued, again, range(3, 4))
        for a, b in zip(weights(continued), weights(sharded), strict=True):
            assert ((a - b).abs() > 1e-4).sum() <= 2, fields
    for name, message in REFUSED.items():
        model = model_of()
        world.shard(model)
        with pytest.raises(ConfigError, match=message):
            build_optimizer(model, name, lr=0.01)


def test_every_registered_optimizer_has_a_case() -> None:
    cases = {fields["type"] for fields in CASES}
    assert not cases & set(REFUSED)
    assert cases | set(REFUSED) == {
        n for n in OPTIMIZERS.choices if OPTIMIZERS[n].__module__.startswith("zoo.")
    }


def test_two_ranks_are_one() -> None:
    on_two_ranks(on_ranks)
