"""Measures one cell in this process, and prints the figures as JSON.

python -m benchmarks.gpu.measure 'update gpt-0.5b amos' --device cuda
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contenders import Trainee, Workload, llama, llama_sizes
from benchmarks.gpu.cells import CELLS, FULL, TINY, Cell, Generation, Size, Training, Update
from zoo import Model, build_model, build_optimizer, generate
from zoo.run.flops import model_flops
from zoo.train.compilation import compiled_loss
from zoo.train.recompute import recompute
from zoo.utils.accelerators import flops_of
from zoo.utils.device import peak_memory

WARM_UP = 3
"""Repetitions that do not count, the first of which compiles."""


def figures(cell: Cell, device: torch.device, size: Size) -> dict[str, Any]:
    """What is recorded of a cell: its own figures, and the peak of the device's memory in bytes."""
    torch.manual_seed(0)
    return {**_figures(cell, device, size), "peak_bytes": peak_memory(device)}


@singledispatch
def _figures(cell: Cell, device: torch.device, size: Size) -> dict[str, Any]:
    raise TypeError(type(cell).__name__)


@_figures.register
def _training(cell: Training, device: torch.device, size: Size) -> dict[str, Any]:
    context = min(cell.context, size.context)
    work = workload(cell.model, context, size)
    trainee = peer(cell, work, device) if cell.package == "transformers" else ours(cell, device, size)
    rows = torch.randint(work.vocab, (work.batch, context + 1), device=device)
    loss = torch.zeros(())

    def step() -> None:
        nonlocal loss
        with torch.autocast(device.type, torch.bfloat16):
            loss = trainee.loss(rows[:, :-1], rows[:, 1:])
        torch.autograd.backward(loss)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad()

    first, seconds = timed(step, device, size.steps)
    per_second = work.batch * context / statistics.median(seconds)
    model = shape(cell.model, size)
    operations = model_flops(model, model.example(1, context)).training // context
    peak = flops_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {
        "parameters": sum(p.numel() for p in trainee.model.parameters()),
        "batch": work.batch,
        "first_s": first,
        "seconds": seconds,
        "tokens_per_s": per_second,
        "flops_per_token": operations,
        "mfu": None if peak is None else per_second * operations / peak,
        "loss": loss.item(),
    }


@_figures.register
def _update(cell: Update, device: torch.device, size: Size) -> dict[str, Any]:
    model = build_model(cell.model, device=device, **size.fields)
    optimizer = build_optimizer(model, cell.optimizer, lr=1e-3, **cell.settings)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter).mul_(0.01)
    first, seconds = timed(optimizer.step, device, size.steps)
    slots = [t for state in optimizer.state.values() for name, t in state.items() if name != "step"]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_s": first,
        "seconds": seconds,
        "state_bytes": sum(t.nbytes for t in slots if isinstance(t, Tensor)),
    }


@_figures.register
def _generation(cell: Generation, device: torch.device, size: Size) -> dict[str, Any]:
    work = workload(cell.model, size.prompt + size.new, size)
    prompt = torch.randint(work.vocab, (cell.batch, size.prompt), device=device)
    write = writer_of_peer if cell.package == "transformers" else writer
    model, once = write(cell, work, device, size)
    tokens = torch.empty(0)

    def run() -> None:
        nonlocal tokens
        tokens = once(prompt)

    first, seconds = timed(run, device, max(2, size.steps // 3))
    if tokens.shape != (cell.batch, size.prompt + size.new):
        raise RuntimeError(f"{tuple(tokens.shape)} tokens; expected {size.new} new ones for each prompt")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_s": first,
        "seconds": seconds,
        "tokens_per_s": cell.batch * size.new / statistics.median(seconds),
    }


def timed(once: Callable[[], object], device: torch.device, repetitions: int) -> tuple[float, list[float]]:
    """The seconds of the first call, and of each of `repetitions` calls after `WARM_UP`."""
    seconds = []
    for _ in range(WARM_UP + repetitions):
        start = time.perf_counter()
        once()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[WARM_UP:]


def shape(model: str, size: Size) -> Model:
    """A shipped model without memory."""
    return build_model(model, device="meta", **size.fields)


def workload(model: str, context: int, size: Size) -> Workload:
    """The sizes of a shipped model and of its batch, which has `size.tokens` tokens."""
    c: Any = shape(model, size).config
    batch = size.tokens // context
    return Workload(c.n_layers, c.d_model, c.n_heads, c.mlp_size, c.vocab_size, context, batch)


def ours(cell: Training, device: torch.device, size: Size) -> Trainee:
    """A model of zoo, as `zoo train` recomputes and compiles it."""
    model = build_model(cell.model, device=device, **size.fields).train()
    optimizer = build_optimizer(model, "adamw", lr=1e-3, betas=[0.9, 0.95], weight_decay=0.0)
    recompute(model, cell.recompute)
    loss = compiled_loss(model, "blocks" if cell.compile == "blocks" else False)
    return Trainee(model, lambda tokens, targets: loss(tokens, targets).total, optimizer)


def peer(cell: Training, work: Workload, device: torch.device) -> Trainee:
    """transformers' Llama of the same sizes."""
    trainee = llama(work, str(device))
    if cell.compile == "blocks":
        compile_each(trainee.model.get_submodule("model.layers"))
    return trainee


def compile_each(blocks: nn.Module) -> None:
    """Compile the forward pass of each child."""
    for block in blocks.children():
        block.forward = torch.compile(block.forward, dynamic=False)


def writer(
    cell: Generation, work: Workload, device: torch.device, size: Size
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A model of zoo, and what continues prompts with it."""
    model = build_model(cell.model, device=device, **size.fields).to(torch.bfloat16)
    is_compiled, is_captured = "compiled" in cell.mode, "graph" in cell.mode

    def run(prompt: Tensor) -> Tensor:
        return generate(model, prompt, size.new, temperature=0, compile=is_compiled, cuda_graph=is_captured)

    return model, run


def writer_of_peer(
    cell: Generation, work: Workload, device: torch.device, size: Size
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """transformers' Llama of the same sizes, and what continues prompts with it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **llama_sizes(work), max_position_embeddings=work.context, eos_token_id=None, pad_token_id=0
    )
    with device:
        model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).eval()
    options: dict[str, Any] = {"max_new_tokens": size.new, "do_sample": False}
    if cell.mode == "compiled":
        options["cache_implementation"] = "static"

    def run(prompt: Tensor) -> Tensor:
        tokens: Tensor = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        return tokens

    return model, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cell", choices=CELLS, metavar="CELL")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    found = figures(CELLS[given.cell], torch.device(given.device), TINY if given.tiny else FULL)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
