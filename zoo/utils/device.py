"""Finding devices by name, and their memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from zoo.utils.errors import ZooError


def find_device(name: str, local_rank: int = 0, local_ranks: int = 1) -> torch.device:
    """The device of this process.

    Args:
        name: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
        local_rank: number of this process on this machine; with `cuda`, the number of its GPU.
        local_ranks: number of processes on this machine.

    Returns:
        An existing device; a CUDA device has its number.

    Raises:
        ZooError: The device does not exist; the message lists those that do.
    """
    devices = available()
    if name == "auto":
        name = "cuda" if "cuda:0" in devices else "mps" if "mps" in devices and local_ranks == 1 else "cpu"
    if name == "cuda":
        name = f"cuda:{local_rank}"
    elif local_ranks > 1 and name != "cpu":
        raise ZooError(f"device '{name}': {local_ranks} processes cannot share it; expected 'cuda' or 'cpu'")
    if name not in devices:
        raise ZooError(f"device '{name}': there is none here; this machine has: {', '.join(devices)}")
    return torch.device(name)


def available() -> list[str]:
    """The names of all devices of this machine."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def total_memory(device: torch.device) -> int:
    """The bytes of memory of a GPU or of this machine; on Windows, where it is unknown, a huge number."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor_field(name: str) -> str | None:
    """A field of the first processor in Linux's /proc/cpuinfo, such as `vendor_id`; None if it is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = (line.split(":", 1) for line in lines if ":" in line)
    return next((value.strip() for key, value in fields if key.strip() == name), None)


def peak_memory(device: torch.device) -> int | None:
    """The peak memory of this process in bytes; None if it is unknown.

    On a GPU it is the memory that torch has allocated, otherwise the resident memory (on Linux only).
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
    peak = fields.get("VmHWM")  # which sandboxes of containers may leave out
    return None if peak is None else int(peak.split()[0]) * 1024
