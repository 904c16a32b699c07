"""Reading safetensors files, with errors that name the file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from zoo.errors import CheckpointError


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU.

    Raises:
        CheckpointError: no such file, a truncated one, or another format (pickles are never read).
    """
    return {name: tensor for name, tensor in open_safetensors(path)[0].items()}


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; see `read_safetensors` for errors."""
    return open_safetensors(path)[1]


def open_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file; see `read_safetensors`."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a (complete) safetensors file: {error}") from error
