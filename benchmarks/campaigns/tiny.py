"""Runs of a second or less, and whether two of them have come to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.checkpoint.safetensors import read_tensors
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.run_folder import RunFolder

TEXT = "".join(
    f"Line {i}: {i} times {i % 7} is {i * (i % 7)}, says the quick brown fox.\n\n" for i in range(150)
)
FILES = ("model", "optimizer", "random")
STEPS = 8
LEFTOVERS = (".partial", ".old", ".lock")


def fields(folder: Path, lr: float = 0.01, **train_fields: Any) -> dict[str, Any]:
    """The configuration of a run in `folder`/runs/tiny."""
    text = folder / "text.txt"
    if not text.exists():
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text(TEXT, encoding="utf-8")
    return {
        "name": "tiny",
        "model": {"type": "gpt", "vocab_size": 256, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 16},
        "optimizer": {"type": "adamw", "lr": lr},
        "data": {
            "corpus": {"type": "text", "paths": [str(text)]},
            "context": 8,
            "validation": 0.2,
            "cache_dir": str(folder / "cache"),
        },
        "train": {
            "steps": STEPS,
            "batch_size": 2,
            "device": "cpu",
            "eval_every": 2,
            "eval_batches": 1,
            "log_every": 1,
            "monitor_every": 4,
            "diagnose_every": None,
            "checkpoint_every": 2,
            "runs_dir": str(folder / "runs"),
            **train_fields,
        },
    }


def finished(folder: Path, until: int | None = None, **train_fields: Any) -> Path:
    """Train a run; returns its folder."""
    return train(load_config(fields(folder, **train_fields)), until=until).folder


def state_of(run: Path) -> dict[str, Any]:
    """What an undisturbed run has as well: metrics without times, pointers, every kept tensor."""
    folder = RunFolder(run)
    state: dict[str, Any] = {
        "metrics": [{k: v for k, v in r.items() if k != "timing"} for r in folder.read_metrics()],
        "pointers": [folder.read_pointer("last"), folder.read_pointer("best")],
        "checkpoints": [kept.path.name for kept in folder.checkpoints()],
        "left": sorted(
            path.name for path in run.rglob("*") if path.name.endswith((".partial", ".old", ".lock"))
        ),
    }
    for kept in folder.checkpoints():
        state[kept.path.name] = kept.read_state()
        for name in FILES:
            state |= {
                f"{kept.path.name} {name} {k}": t for k, t in read_tensors(getattr(kept, name))[0].items()
            }
    return state


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first entry in which two states differ, bit by bit; None if there is none."""
    for key in (*one, *(other.keys() - one.keys())):
        left, right = one.get(key), other.get(key)
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            same = left.dtype == right.dtype and torch.equal(left, right)
        else:
            same = json.dumps(left) == json.dumps(right) if not isinstance(left, Tensor) else False
        if not same:
            return f"{key}: {str(left)[:150]} / {str(right)[:150]}"
    return None


def difference_in_common(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """`difference` of runs that were stopped after different steps, of which each has checkpoints."""
    shared = (one.keys() & other.keys()) - {"checkpoints"}
    return difference({k: one[k] for k in one if k in shared}, {k: other[k] for k in other if k in shared})
