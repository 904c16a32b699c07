"""The versions, machine and command of a session, for environment.json."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import zoo
from zoo.kernels import native
from zoo.kernels.matmul import BFLOAT16, PRODUCT
from zoo.train.distributed import World
from zoo.utils.device import processor_field
from zoo.utils.untyped import JsonObject

PACKAGES = ("torch", "numpy", "pydantic", "safetensors", "sentencepiece", "einops")


def describe(world: World, step: int) -> JsonObject:
    """The versions, machine, threads, source commit and command; environment variables are left out.

    Args:
        world: the ranks.
        step: the step at which this session starts.
    """
    return {
        "from_step": step,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": {"zoo": zoo.__version__} | {p: version for p in PACKAGES if (version := _version(p))},
        "git_commit": _git_commit(),
        "system": platform.platform(),
        "processor": processor_field("model name") or platform.processor(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "float32_product": PRODUCT,
        "bfloat16_product": _bfloat16_product(world.device),
        "cpu_kernels": native.kind() if world.device.type == "cpu" else None,
        "ranks": world.size,
        "device": _device(world.device),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _git_commit() -> str | None:
    """The commit of zoo's source, if it is a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _bfloat16_product(device: torch.device) -> str:
    """What multiplies matrices in bfloat16: an accelerator by its name, or the processor."""
    if device.type != "cpu":
        return _device(device)
    return "processor" if BFLOAT16 else "float32, rounded"


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
