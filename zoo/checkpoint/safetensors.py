"""Named tensors in safetensors files, the only format of tensors that zoo writes."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from zoo.utils.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's dtypes by their names in a header."""
SHOWN = 4
"""Number of names that a message lists."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file; not atomic, `zoo.utils.atomic` is for that.

    Args:
        path: the file to make.
        tensors: contiguous tensors on the CPU that share no memory.
        metadata: strings kept in the header.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        save_file(dict(tensors), str(path), dict(metadata))
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a file; only the tensors that are requested are read.

    Args:
        path: a .safetensors file.

    Yields:
        The handle of `safetensors.safe_open`.

    Raises:
        CheckpointError: the file is missing or truncated, or is not a safetensors file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; expected a safetensors file")
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a complete safetensors file ({error}); expected one written by zoo or, with a "
            f"format, by another library{_pickle_hint(path)}"
        ) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a whole file onto the CPU.

    Args:
        path: a .safetensors file.

    Returns:
        The tensors by name, and the metadata (empty if there is none).

    Raises:
        CheckpointError: the file is missing or truncated, or is not a safetensors file.
    """
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_header(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The names, shapes and dtypes in a file's header.

    Args:
        path: a .safetensors file.

    Returns:
        Tensors of the meta device by name, and the metadata (empty if there is none).

    Raises:
        CheckpointError: the file is missing or truncated, is not a safetensors file, or has other dtypes.
    """
    tensors = {}
    with open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            if (kind := part.get_dtype()) not in DTYPES:
                raise CheckpointError(f"{path}: {name} is {kind}; expected one of {', '.join(DTYPES)}")
            tensors[name] = torch.empty(part.get_shape(), dtype=DTYPES[kind], device="meta")
        return tensors, file.metadata() or {}


@torch.no_grad()
def fill(path: Path, targets: Mapping[str, Tensor]) -> None:
    """Copy tensors of a file, one after the other, into existing tensors.

    Args:
        path: a .safetensors file.
        targets: tensors of the same shapes, by their names in the file; on any device.

    Raises:
        CheckpointError: the file is missing or truncated, or is not a safetensors file.
    """
    with open_tensors(path) as file:
        for name, target in targets.items():
            target.copy_(file.get_tensor(name))


def _pickle_hint(path: Path) -> str:
    """A clause for messages about files of torch.save: zip archives and bare pickles."""
    with path.open("rb") as file:
        start = file.read(2)
    if start in (b"PK", b"\x80\x02"):
        return "; it looks like torch.save's pickle, which may run code: convert it with safetensors.torch"
    return ""


def check_match(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare the tensors of a file with those of a model.

    Args:
        path: the file, for the message.
        found: the tensors of the file.
        expected: the tensors of the model.

    Raises:
        CheckpointError: names, shapes or dtypes differ.
    """
    problems = []
    if missing := [name for name in expected if name not in found]:
        problems.append(f"lacks {shorten(missing)}")
    if surplus := [name for name in found if name not in expected]:
        problems.append(f"has {shorten(surplus)}, which the model has not")
    both = [name for name in expected if name in found]
    differing = [n for n in both if _kind(found[n]) != _kind(expected[n])]
    if differing:
        shown = [f"{n} is {_kind(found[n])}, expected {_kind(expected[n])}" for n in differing]
        problems.append(shorten(shown))
    if problems:
        raise CheckpointError(f"{path}: does not belong to this model: {'; '.join(problems)}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def shorten(items: list[str]) -> str:
    """The first few of some names, and the number of the others."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
