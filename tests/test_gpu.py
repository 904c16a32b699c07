"""The device's part of the tests: what a GPU computes is what a processor computes, within rounding.

Where there is no GPU only the processor's half runs, which shows that the tests themselves are right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_packing import NUMBERS
from tiny_runs import of_kind, tiny
from tiny_sweeps import base, sweep_file
from torch import Tensor

from zoo import Model, build_model, build_optimizer, generate, load_model
from zoo.ablate.execute import execute
from zoo.ablate.sweep import load_sweep
from zoo.optim.clip import Clip
from zoo.train.compilation import compiled_loss
from zoo.train.distributed import World
from zoo.train.recompute import recompute
from zoo.train.run import train
from zoo.train.step import Stepper

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
SIZES: dict[str, Any] = {"vocab_size": 67, "d_model": 32, "n_layers": 2, "n_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"source": "gpt"},
    "ngpt": {"source": "ngpt"},
    "wesar": {"source": "gpt", "init": "he", "reparam": "wesar"},
    "t5": {"source": "t5"},
}
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-5}
"""float32, summed in another order."""


def model_on(device: str, name: str) -> Model:
    """The same model wherever it is."""
    return build_model(**MODELS[name], **SIZES, seed=0).to(device)


def gradients(model: Model, device: str) -> list[Tensor]:
    """Loss and gradients of a batch, on the processor."""
    generator = torch.Generator().manual_seed(0)
    batch = [torch.randint(67, part.shape, generator=generator) for part in model.example(2, 16)]
    loss = model.loss(*(part.to(device) for part in batch)).total
    torch.autograd.backward(loss)
    return [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("way", ["none", "blocks", "selective"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_a_processor(name: str, way: Any, device: str) -> None:
    model = model_on(device, name)
    recompute(model, way)
    found, expected = gradients(model, device), gradients(model_on("cpu", name), "cpu")
    assert len(found) == len(expected) > 1
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("optimizer", ["adamw", "amos", "muon", "normuon", "adafactor"])
def test_steps_are_those_of_a_processor(optimizer: str, device: str) -> None:
    def after_three(where: str) -> list[Tensor]:
        model = model_on(where, "ngpt")
        stepper = build_optimizer(model, optimizer, lr=1e-2)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator).to(where)
            stepper.step()
        return [p.detach().cpu() for p in model.parameters()]

    muon: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-3}  # its products are bfloat16
    tolerance = muon if "muon" in optimizer else CLOSE
    for ours, theirs in zip(after_three(device), after_three("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_documents_do_not_see_each_other(device: str) -> None:
    tokens = torch.randint(67, NUMBERS.shape, generator=torch.Generator().manual_seed(0))
    together = model_on(device, "gpt").eval()(tokens.to(device), documents=NUMBERS.to(device)).cpu()
    first = NUMBERS[0] == 0
    alone = model_on("cpu", "gpt").eval()(tokens[:1, first])
    torch.testing.assert_close(together[:1, first], alone, **CLOSE)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_run_in_bf16(device: str, tmp_path: Path) -> None:
    folder = train(tiny(tmp_path, device=device, precision="bf16", steps=20)).folder
    losses = [record["loss"] for record in of_kind(folder, "train")]
    assert losses[-1] < losses[0] - 0.5
    model = load_model(folder, device=device)
    prompt = torch.zeros(2, 3, dtype=torch.int64, device=device)
    assert generate(model, prompt, 5, temperature=0).shape == (2, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpt", "ngpt", "wesar"])
def test_compiled_blocks_compute_the_same(name: str) -> None:
    expected = gradients(model_on("cuda", name), "cuda")
    model = model_on("cuda", name)
    compiled_loss(model, "blocks")
    for ours, theirs in zip(gradients(model, "cuda"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("ways", [("compile",), ("cuda_graph",), ("compile", "cuda_graph")])
def test_a_faster_step_of_generation_writes_the_same(ways: tuple[str, ...]) -> None:
    model = build_model("gpt", **SIZES, init={"type": "gpt2", "std": 0.2}, seed=0).to("cuda")
    prompt = torch.arange(5, device="cuda")[None]
    plain = generate(model, prompt, 20, temperature=0)
    faster = generate(
        model, prompt, 20, temperature=0, compile="compile" in ways, cuda_graph="cuda_graph" in ways
    )
    assert torch.equal(faster, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("source", ["ngpt", "lstm", "t5"])
def test_a_captured_step_writes_the_same(source: str) -> None:
    sizes = {"vocab_size": 67, "d_model": 32} if source == "lstm" else SIZES
    model = build_model(source, **sizes, seed=0).to("cuda")
    start = 7 if source == "t5" else None
    prompt = torch.arange(5, device="cuda")[None]
    plain = generate(model, prompt, 20, seed=3, start_id=start)
    assert torch.equal(generate(model, prompt, 20, seed=3, start_id=start, cuda_graph=True), plain)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["adamw", "amos", "muon", "lion", "adafactor", "torch.optim.RMSprop"])
def test_a_step_does_not_wait_for_the_device(kind: str) -> None:
    model = model_on("cuda", "gpt")
    optimizer = build_optimizer(model, {"type": kind, "lr": 1e-3})
    world = World(0, 1, torch.device("cuda"))
    step = Stepper(model, model.loss, optimizer, world, 2, "bf16", Clip(1.0), 0.0)
    batch = tuple(part.pin_memory() for part in model.example(2, 16))
    for mode in ("default", "error"):  # the first step makes the optimizer's state
        torch.cuda.set_sync_debug_mode(mode)
        try:
            result = step.gradient(batch, lambda: False)
            step.update(result, pending=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert result.is_finite


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_numbers_that_are_read_a_step_later_are_the_same(device: str, tmp_path: Path) -> None:
    usual = {"device": device, "steps": 20, "monitor_every": None, "diagnose_every": None}

    def logged(every: int) -> dict[int, dict[str, Any]]:
        run = train(tiny(tmp_path, f"name=every-{every}", log_every=every, **usual)).folder
        return {record["step"]: record for record in of_kind(run, "train")}

    at_once, later = logged(1), logged(10)
    assert list(later) == [10, 20]
    for step, record in later.items():
        for name in ("loss", "grad_norm"):
            assert record[name] == pytest.approx(at_once[step][name], rel=1e-3)


@pytest.mark.gpu
def test_workers_that_are_forked_use_the_device(tmp_path: Path) -> None:
    """The process that they are forked from imports the compiler, which looks for GPUs, but uses none."""
    file = sweep_file(tmp_path, base=base(tmp_path, device="cuda", compile=True))
    result = execute(load_sweep(file), workers=2)
    assert {run.status for run in result.manifest.runs} == {"finished"}
