"""Limits of sizes: those that no machine can train are refused before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as File

import torch

from zoo.config.yaml import Located, Path, dotted
from zoo.utils.errors import ConfigError, joined_message
from zoo.utils.permissions import Permissions

LARGEST = 2**31 - 1
"""Limit of integers that are not in `LIMITS`."""
LIMITS = {
    "seed": 2**63 - 1,
    "steps": 10**12,
    "n_layers": 1000,
    "n_decoder_layers": 1000,
    "n_heads": 2**16,
    "d_model": 2**20,
    "d_mlp": 2**23,
    "d_memory": 2**23,
    "width": 2**16,
    "size": 2**16,
    "stages": 1000,
    "sentinels": 2**16,
    "streams": 2**20,
}
"""Limits of integers by their key (our choice). They are far beyond any model that has been trained, and
small enough for such a model to be declared within seconds."""
LIFTED = "--allow-large lifts the limit"


def beyond_reason(given: Located, path: Path = ()) -> Iterator[str]:
    """Yield messages about the integers of a configuration that exceed their limit, with their places.

    Args:
        given: the composed configuration.
        path: the keys that lead to it.
    """
    value = given.value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from beyond_reason(item, (*path, key))
    key = next((key for key in reversed(path) if isinstance(key, str)), "")
    limit = LIMITS.get(key, LARGEST)
    if type(value) is int and abs(value) > limit and not Permissions.large:
        message = f"value {value}: expected at most {limit}; {LIFTED}"
        yield joined_message(given.place, dotted(path), message)


def require_memory(key: str, value: object, needed: int, what: str, device: torch.device) -> None:
    """Refuse a value of the configuration that needs more memory than is free.

    Args:
        key: the key of the configuration, for the message.
        value: value of the key.
        needed: number of bytes that are needed at least.
        what: the objects that need the memory, in words.
        device: the device whose memory is needed.

    Raises:
        ConfigError: Less memory is free than needed.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if free is not None and needed > free and not Permissions.large:
        raise ConfigError(
            f"{key}: value {value}: {what} need at least {needed / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB of "
            f"memory are free; {LIFTED}"
        )


def available_memory() -> int | None:
    """The bytes of this machine's memory that a process can use; None if it is unknown."""
    try:
        lines = File("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    if "MemAvailable" not in fields:
        return None
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit = File("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text(encoding="utf-8").strip()).isdigit():
        free = min(free, int(text))
    return free
