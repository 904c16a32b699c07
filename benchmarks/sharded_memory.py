"""Resident memory of every rank at start, step, save and load, against the size of the model.

    python -m benchmarks.sharded_memory [RANKS ...]

One process for each rank on this machine, gloo, AdamW, one sequence of 128 tokens for each. What is told is
the peak of a phase without what a process holds before it has a model, the largest over the ranks.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from zoo import build_model, build_optimizer, load_model
from zoo.checkpoint.recipe import Recipe, assemble
from zoo.models import Model
from zoo.run.train_config import ParallelConfig
from zoo.train.checkpoints import Checkpoints, load_progress
from zoo.train.distributed import World, world
from zoo.utils.device import peak_memory
from zoo.utils.run_folder import RunFolder

LARGE = {"type": "gpt", "vocab_size": 32000, "d_model": 1024, "n_layers": 12, "n_heads": 16}
SMALL = {**LARGE, "vocab_size": 64, "d_model": 64, "n_layers": 1}
PHASES = ("start", "step", "save", "load")
MIB = 2**20


def recipe(sizes: dict[str, Any]) -> Recipe:
    """The recipe of a GPT of these sizes."""
    found: Recipe = build_model({"model": sizes}, device="meta").recipe
    return found


def forget_peak() -> None:
    """Return freed memory to the system, and begin a new peak (Linux)."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def step(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """One optimizer step on a sequence of zeros."""
    tokens = torch.zeros(1, 129, dtype=torch.int64)
    torch.autograd.backward(model.loss(tokens[:, :-1], tokens[:, 1:]).total)
    optimizer.step()
    optimizer.zero_grad()


def phases(sizes: dict[str, Any], ours: World, folder: Path) -> dict[str, int]:
    """Peak resident memory of each phase, bytes."""
    peaks = {}
    forget_peak()
    model = assemble(recipe(sizes), 0, prepare=ours.shard)
    peaks["start"] = peak_memory(ours.device) or 0
    optimizer = build_optimizer(model, "adamw", lr=1e-3)
    forget_peak()
    step(model, optimizer)
    peaks["step"] = peak_memory(ours.device) or 0
    forget_peak()
    with Checkpoints(RunFolder(folder), ours, 1, "data") as checkpoints:
        checkpoints.save(1, model, optimizer)
    peaks["save"] = peak_memory(ours.device) or 0
    del model, optimizer
    forget_peak()
    checkpoint = RunFolder(folder).checkpoint()
    assert checkpoint is not None
    again = load_model(checkpoint.path, prepare=ours.shard)
    load_progress(checkpoint, build_optimizer(again, "adamw", lr=1e-3), ours)
    peaks["load"] = peak_memory(ours.device) or 0
    return peaks


def rank(number: int, ranks: int, port: int, folder: Path) -> None:
    """Measure one rank, and write what it measured into the folder."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_ADDR": "localhost"}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with world("cpu", ParallelConfig(timeout=3600)) as ours:
        phases(SMALL, ours, folder / "small")  # what torch holds once and for all
        forget_peak()
        before = peak_memory(ours.device) or 0
        found = {name: peak - before for name, peak in phases(LARGE, ours, folder / "large").items()}
        (folder / f"{number}.json").write_text(json.dumps(found), encoding="utf-8")
        if dist.is_initialized():
            dist.barrier()


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[1, 2, 4])
    model = build_model({"model": LARGE}, device="meta")
    sizes = [p.numel() * 4 for p in model.parameters()]
    count, whole, largest = sum(sizes) / 4e6, sum(sizes) / MIB, max(sizes) / MIB
    print(f"{count:.0f}M parameters, {whole:.0f} MiB of weights; the largest tensor {largest:.0f} MiB; MiB:")
    print("| ranks | weights of a rank | " + " | ".join(PHASES) + " |\n" + "|---" * 6 + "|")
    for ranks in parser.parse_args().ranks:
        with tempfile.TemporaryDirectory() as name, socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
            free.close()
            spawn(rank, args=(ranks, port, Path(name)), nprocs=ranks)  # type: ignore[no-untyped-call]
            found = [json.loads((Path(name) / f"{i}.json").read_text(encoding="utf-8")) for i in range(ranks)]
        peaks = [max(each[phase] for each in found) / MIB for phase in PHASES]
        print(
            f"| {ranks} | {whole / ranks:.0f} | " + " | ".join(f"{p:.0f}" for p in peaks) + " |", flush=True
        )


if __name__ == "__main__":
    main()
