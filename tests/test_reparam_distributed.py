"""Two gloo ranks with unevenly sharded parameters do what a single process does, with every method."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny_runs import tiny
from torch import Tensor
from torch.distributed.tensor import DTensor
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer
from zoo.checkpoint.recipe import declare
from zoo.init import initialise
from zoo.models import Model
from zoo.reparam import start_from_forward
from zoo.run.job import Job
from zoo.train.build import build
from zoo.train.distributed import World
from zoo.train.start import Start
from zoo.utils.sharded import whole

TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 12, "n_layers": 1, "n_heads": 2, "d_mlp": 7}
METHODS: list[tuple[dict[str, Any], str]] = [
    ({"type": "weight_norm"}, "amos"),
    ({"type": "sigma_reparam"}, "adamw"),
    ({"type": "sigma_reparam", "differentiate": True}, "amos"),
    ({"type": "lora", "rank": 3, "roles": ["linear", "embedding"]}, "adamw"),
]


def train(model: Model, kind: str) -> None:
    """A few steps on made-up tokens."""
    optimizer = build_optimizer(model, kind, lr=0.01)
    for step in range(3):
        tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(tokens[:, :-1], tokens[:, 1:]).total)
        optimizer.step()


def state(model: Model) -> dict[str, Tensor]:
    """Weights and measurements, whole."""
    return {name: whole(tensor.detach()) for name, tensor in model.state_dict().items()}


def agree(sharded: Model, single: Model) -> None:
    ours, theirs = state(sharded), state(single)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, **TOLERANCE, msg=name)


def compare(ours: World, method: dict[str, Any], kind: str) -> None:
    """Raise unless sharded and whole training agree, from the start on, however it was filled."""
    single = build_model("gpt", **SIZES, init="he", reparam=method, seed=3)
    sharded = copy.deepcopy(single)
    ours.shard(sharded)
    assert any(isinstance(p, DTensor) and p.to_local().shape[0] in (6, 7) for p in sharded.parameters())
    late = declare(single.recipe)
    ours.shard(late)
    late.to_empty(device="cpu")
    initialise(late, single.recipe.init, seed=3)
    agree(late, single)
    tokens = torch.randint(13, (4, 9), generator=torch.Generator().manual_seed(9))
    start_from_forward(single, tokens)
    for model in (sharded, late):
        start_from_forward(model, tokens.chunk(2)[ours.rank], total=ours.sum, reshard=ours.reshard)
        agree(model, single)
    for model in (single, sharded, late):
        train(model, kind)
    agree(sharded, single)
    agree(late, single)


def compare_starts(ours: World, folder: Path, data: tuple[str, ...], accumulation: int) -> None:
    """Raise unless a run on two ranks has the first weights of a run on one."""
    config = tiny(folder, "reparam=weight_norm", *data, batch_size=8, accumulation=accumulation)
    job = Job.of(config)
    single = build(job, Start(), World(0, 1, ours.device)).model
    agree(build(job, Start(), ours).model, single)


def all_cases(folder: Path, ours: World) -> None:
    """On one rank."""
    for method, kind in METHODS:
        try:
            compare(ours, method, kind)
        except Exception as error:
            raise AssertionError(f"{method} with {kind}") from error
    # Each rank pads its own answers.
    answers = f"data={{type: instructions, train: {folder / 'pairs.jsonl'}, validation: null}}"
    for data in ((), (answers,)):
        for accumulation in (1, 2):
            try:
                compare_starts(ours, folder, data, accumulation)
            except Exception as error:
                raise AssertionError(f"start with {data or 'text'} in {accumulation} parts") from error


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    pairs = [{"prompt": "ab" * i, "response": "cde" * i} for i in range(1, 13)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")
    text = tiny(tmp_path)
    assert text.data is not None and text.model is not None
    text.data.prepare(text.model)  # once, before both ranks need it
    on_two_ranks(partial(all_cases, tmp_path))
