"""The operations that optimizers declare, and those of the steps that they take."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_runs import SIZES, tiny
from torch.utils.flop_counter import FlopCounterMode

from zoo import build_model, build_optimizer
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.step_cost import step_cost
from zoo.checkpoint.recipe import declare
from zoo.data.dataset import BatchSpec
from zoo.run.config import RunConfig, load_config
from zoo.run.explanation import explain
from zoo.run.factory import recipe_of
from zoo.run.flops import model_flops, run_flops, update_flops
from zoo.run.job import Job
from zoo.train.run import train

SIZE: dict[str, Any] = {**SIZES}
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("muon", {}, 1),
    ("muon", {"ns_steps": 3, "split_heads": True, "coefficients": "polar_express"}, 1),
    ("normuon", {}, 1),
    ("soap", {"precondition_frequency": 3, "max_precond_dim": 32}, 6),
    ("soap", {"precondition_frequency": 1}, 2),
    ("adamw", {}, 1),
    ("amos", {}, 1),
]


def addmm_(_: Sequence[int], a: Sequence[int], b: Sequence[int], **other: object) -> int:
    """The operations of a product in place, of which torch counts none."""
    return 2 * a[0] * a[1] * b[1]


@pytest.mark.parametrize(("name", "fields", "steps"), CASES, ids=str)
def test_those_of_a_step_are_counted(name: str, fields: dict[str, Any], steps: int) -> None:
    """torch counts the same in the step itself, but no QR, which has 8/3 n^3 of n rows."""
    model = build_model("gpt", seed=0, **SIZE)
    optimizer = build_optimizer(model, name, lr=1e-3, **fields)
    batch = model.example(2, 8)
    counted = 0
    for step in range(1 + steps):  # the first step of SOAP makes the bases
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(*batch).total)
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_}) as counter:
            optimizer.step()
        counted += counter.get_total_flops() if step else 0
    config = load_config({"optimizer": {"type": name, "lr": 1e-3, **fields}}).optimizer
    assert config is not None
    turns = 0.0
    if name == "soap":
        longest, often = fields.get("max_precond_dim", 10_000), fields["precondition_frequency"]
        matrices = [p.shape for p in model.parameters() if p.dim() > 1]
        turns = sum(8 / 3 * n**3 / often for shape in matrices for n in shape if n <= longest)
    assert update_flops(model, config) - turns == pytest.approx(counted / steps, rel=1e-12)


def test_they_are_explained() -> None:
    for name, shown in (("muon", True), ("adamw", False)):
        found = explain({"model": {"type": "gpt", **SIZES}, "optimizer": {"type": name, "lr": 1e-3}})
        text = io.StringIO()
        Console(file=text, width=200).print(found.table())
        assert (found.totals.update_flops > 0) == shown == ("FLOPs a step" in text.getvalue())


def counted_in_a_step(config: RunConfig) -> int:
    """The operations of a forward and backward pass per token, without the gradients of frozen blocks."""
    assert config.model is not None
    model = build_model({"model": config.model})
    for rule in config.freeze:
        assert rule.depth is not None
        for depth in range(rule.depth[0], rule.depth[1] + 1):
            model.get_submodule(f"blocks.{depth - 1}").requires_grad_(False)
    batch = model.example(3, 16)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model.loss(*batch).total)
    return int(counter.get_total_flops()) // batch[-1].numel()


def test_those_of_a_run(tmp_path: Path) -> None:
    """Parameters that are not trained have neither gradients nor updates, in a run and in its forecast."""
    found = []
    for i, changes in enumerate(((), ("freeze=[{depth: [1, 1]}]",))):
        config = tiny(
            tmp_path,
            "optimizer={type: muon, lr: 1e-3}",
            "schedule.warmup=1",
            f"name=run{i}",
            *changes,
            steps=4,
            batch_size=2,
        )
        model = declare(recipe_of(config))
        training = counted_in_a_step(config)
        update = update_flops(model, Job.of(config).optimizer) / (1 + i)
        total = read_run_metrics(train(config).folder).training.total
        assert total["flops"] == 4 * (2 * 16 * training + update)
        forward = model_flops(model, model.example(1, 16)).forward
        evaluations = (Job.of(config).train.eval_batches or 0) / Job.of(config).train.eval_every
        assert step_cost(config) == (32, 32 * training + update + 2 * forward * evaluations)
        found.append(training)
    assert found[1] < found[0]


OF_OBJECTIVES = {
    "span-corruption": (
        "model={type: t5, vocab_size: 265, d_model: 16, n_layers: 2, n_heads: 2, d_mlp: 32}",
        "data.objective={type: span-corruption, sentinels: 8}",
    ),
    "mlm": (
        "model={type: bert, vocab_size: 257, d_model: 16, n_layers: 2, n_heads: 2, position: rope}",
        "data.objective=mlm",
    ),
}


@pytest.mark.parametrize("objective", OF_OBJECTIVES)
def test_those_of_a_run_are_those_of_its_batches(tmp_path: Path, objective: str) -> None:
    """A run counts the tokens that it reads, also where the targets are fewer."""
    config = tiny(tmp_path, *OF_OBJECTIVES[objective], "data.context=32", "schedule.warmup=1", steps=2)
    job = Job.of(config)
    batch = job.data.prepare(job.model).train_batch(BatchSpec(0, 0, 4))
    forward, counted = model_flops(declare(recipe_of(config)), batch)
    assert run_flops(config).example.forward * 4 == forward
    total = read_run_metrics(train(config).folder).training.total
    assert total["flops"] == 2 * counted
    assert total["tokens"] == 2 * step_cost(config).units == 2 * 4 * 32
    assert explain(config).totals.training_flops == counted // (4 * 32)


def test_those_of_conversations_are_of_whole_rows(tmp_path: Path) -> None:
    """The operations are those of all tokens of a row, whether the run counts tokens or examples."""
    lines = [{"prompt": f"Say {i}.", "completion": str(i)} for i in range(8)]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    text = run_flops(tiny(tmp_path, "schedule.warmup=1"))
    data = f"type: instructions, train: {path}, context: 16"
    for packing, units in (("false", (4, "examples")), ("true", (64, "tokens"))):
        config = tiny(
            tmp_path,
            f"data={{{data}, packing: {packing}}}",
            f"name=packing-{packing}",
            "schedule.warmup=1",
            steps=2,
        )
        assert run_flops(config) == text
        assert (step_cost(config).units, Job.of(config).data.units.noun) == units
        assert read_run_metrics(train(config).folder).training.total["flops"] == 2 * text.step
