"""From the name of a device to one that is there."""

from __future__ import annotations

from pathlib import Path

import torch

from zoo.utils.errors import ZooError


def find_device(name: str, local_rank: int = 0, local_ranks: int = 1) -> torch.device:
    """The device of this process.

    Args:
        name: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
        local_rank: number of this process on this machine; with `cuda`, the number of its GPU.
        local_ranks: processes on this machine.

    Returns:
        A device that exists; CUDA devices with their number.

    Raises:
        ZooError: there is no such device; the message says which exist.
    """
    there = available()
    if name == "auto":
        name = "cuda" if "cuda:0" in there else "mps" if "mps" in there and local_ranks == 1 else "cpu"
    if name == "cuda":
        name = f"cuda:{local_rank}"
    elif local_ranks > 1 and name != "cpu":
        raise ZooError(f"device '{name}': {local_ranks} processes cannot share it; expected 'cuda' or 'cpu'")
    if name not in there:
        raise ZooError(f"device '{name}': there is none here; this machine has: {', '.join(there)}")
    return torch.device(name)


def available() -> list[str]:
    """The names of all devices of this machine."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def peak_memory(device: torch.device) -> int | None:
    """The most memory that this process has held so far, in bytes; None where nobody says.

    On a GPU what torch has allocated there; otherwise the resident memory, which Linux tells.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
