"""Runs so small that a test can train them: a few thousand parameters, a page of text."""

from __future__ import annotations

import importlib
import itertools
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from forks import CONTEXT, start
from torch import Tensor

from zoo.checkpoint.model import find_checkpoint
from zoo.checkpoint.safetensors import read_tensors
from zoo.run.config import RunConfig, load_config
from zoo.train.checkpoints import WRITER
from zoo.train.run import train
from zoo.utils.allocator import HUGE_PAGES
from zoo.utils.run_folder import RunFolder

ROOT = Path(__file__).parent.parent
TEXT = "".join(
    f"Line {i}: {i} times {i % 7} is {i * (i % 7)}, and the quick brown fox jumps over the lazy dog.\n\n"
    for i in range(400)
)
SIZES = {"vocab_size": 256, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 32}


def tiny_fields(folder: Path, **train: Any) -> dict[str, Any]:
    """A configuration as plain data: GPT with AdamW, 40 steps, the run in `folder`/runs."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(TEXT, encoding="utf-8")
    return {
        "name": "tiny",
        "model": {"type": "gpt", **SIZES},
        "optimizer": {"type": "adamw", "lr": 1e-2},
        "schedule": {"type": "cosine", "warmup": 5},
        "data": {
            "corpus": {"type": "text", "paths": [str(text)]},
            "context": 16,
            "validation": 0.2,
            "cache_dir": str(folder / "cache"),
        },
        "train": {
            "steps": 40,
            "batch_size": 4,
            "device": "cpu",
            "eval_every": 10,
            "eval_batches": 2,
            "log_every": 1,
            "monitor_every": 10,
            "diagnose_every": 10,
            "checkpoint_every": 20,
            "runs_dir": str(folder / "runs"),
            **train,
        },
    }


def tiny(folder: Path, *overrides: str, **train: Any) -> RunConfig:
    """`tiny_fields` as a configuration, with overrides as on the command line."""
    return load_config(tiny_fields(folder, **train), overrides)


def reproducible(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the time they took."""
    return [{k: v for k, v in record.items() if k != "timing"} for record in RunFolder(run).read_metrics()]


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    """The reproducible lines of one kind."""
    return [record for record in reproducible(run) if record["kind"] == kind]


def environment() -> dict[str, str]:
    """For a process that computes as this one does, without the huge pages that the command line asks for."""
    kept = {name: value for name, value in os.environ.items() if name not in HUGE_PAGES}
    return {**kept, "OMP_NUM_THREADS": str(torch.get_num_threads())}


def kill(fields: dict[str, Any], module: str, function: str, call: int) -> None:
    """Train in another process and kill -9 it when it calls `function` for the `call`-th time."""
    here, there = CONTEXT.Pipe()
    victim = start(_train_until, there, fields, module, function, call)
    there.close()
    assert here.recv() == "now"
    victim.kill()
    victim.join()
    assert victim.exitcode == -9


def _train_until(
    parent: Connection, fields: dict[str, Any], module_name: str, function: str, call: int
) -> None:
    module = importlib.import_module(f"zoo.train.{module_name}")
    original, calls = getattr(module, function), itertools.count(1)

    def wait_for_death(*arguments: Any) -> Any:
        if next(calls) == call:
            for thread in threading.enumerate():  # what was to be written before this call is written
                if thread.name == WRITER and thread is not threading.current_thread():
                    thread.join()
            parent.send("now")
            time.sleep(600)
        return original(*arguments)

    setattr(module, function, wait_for_death)
    train(load_config(fields))


def saved(run: Path) -> dict[str, Tensor]:
    """Every tensor of the last checkpoint."""
    folder = find_checkpoint(run)
    parts = ("model", "optimizer", "random")
    return {f"{p}:{k}": t for p in parts for k, t in read_tensors(folder / f"{p}.safetensors")[0].items()}


def assert_same(run: Path, other: Path) -> None:
    assert reproducible(run) == reproducible(other)
    left, right = saved(run), saved(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name
