"""The tensors of a folder in the hub's layout: one safetensors file, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.checkpoint.safetensors import opened, some, write_tensors
from zoo.data.files import read_object
from zoo.utils.errors import CheckpointError, DataError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Size of a file up to which tensors share one, when they are written."""
DTYPES = ("F32", "BF16", "F16")
"""What float32 holds exactly."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor is, and what its file's header says of it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: no such file, or something else in it.
    """
    try:
        return read_object(path)
    except DataError as error:
        raise CheckpointError(str(error)) from error


def survey(folder: Path) -> dict[str, Entry]:
    """Everything that a folder holds, from the headers of its files; no tensor is read.

    Args:
        folder: with ``model.safetensors``, or an index and the files it names.

    Raises:
        CheckpointError: no such files, a truncated one, or an index that does not tell the truth.
    """
    index = folder / INDEX
    entries: dict[str, Entry] = {}
    where = _indexed(index) if index.is_file() else {}
    for file in dict.fromkeys(where.values()) or [_single(folder)]:
        with opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118
                part = handle.get_slice(name)
                if name in entries:
                    raise CheckpointError(f"{file}: {name} is in {entries[name].file.name} as well")
                entries[name] = Entry(file, name, tuple(part.get_shape()), part.get_dtype())
    found = {name: entry.file for name, entry in entries.items()}
    if lost := [name for name, file in where.items() if found.get(name) != file]:
        raise CheckpointError(f"{index}: {some(lost)}: not in the file it names")
    return entries


def stream(jobs: Iterable[tuple[Entry, Callable[[Tensor], None]]]) -> None:
    """Hand tensors over, file by file, so that no more than one file's pages are in memory.

    Args:
        jobs: where a tensor is, and what takes it; it gets a view of the mapped file, to be copied.
    """

    def file_of(job: tuple[Entry, Callable[[Tensor], None]]) -> Path:
        return job[0].file

    for file, group in groupby(sorted(jobs, key=file_of), file_of):
        with opened(file) as handle:
            for entry, take in group:
                take(handle.get_tensor(entry.name))


def write_shards(folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, shard_bytes: int) -> None:
    """Write tensors to one file, or to several with an index.

    Args:
        folder: an existing one.
        tensors: floating point, on the CPU.
        dtype: in the files.
        shard_bytes: size up to which tensors share a file; a larger one has its own.
    """
    groups: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * dtype.itemsize
        if not groups or size > room:
            groups.append([])
            room = shard_bytes
        groups[-1].append(name)
        room -= size
    numbered = [f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)]
    files = [SINGLE] if len(groups) == 1 else numbered
    for file, names in zip(files, groups, strict=True):
        # safetensors takes no views, and no two names for one memory.
        part = {name: tensors[name].to(dtype, copy=True).contiguous() for name in names}
        write_tensors(folder / file, part, {"format": "pt"})
    if len(groups) > 1:
        total = sum(tensor.numel() * dtype.itemsize for tensor in tensors.values())
        where = {name: file for file, names in zip(files, groups, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _single(folder: Path) -> Path:
    file = folder / SINGLE
    if not file.is_file():
        others = sorted(
            p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".safetensors")
        )
        pickles = [name for name in others if not name.endswith(".safetensors")]
        hint = f"; it has {some(others)}" if others else ""
        if pickles:
            hint += ": zoo never opens a pickle, which may run code; convert it to safetensors first"
        raise CheckpointError(f"{folder}: expected {SINGLE} or {INDEX}{hint}")
    return file


def _indexed(index: Path) -> dict[str, Path]:
    """Tensor by tensor the file in the index's own folder; anything but a plain name is refused."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map: expected an object of tensors and files")
    beside = {path.name for path in index.parent.iterdir() if path.is_file()}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: {name}: {file!r}; expected the name of a .safetensors file beside it"
            )
        if file not in beside:
            raise CheckpointError(f"{index}: {name}: no file {file!r} beside it")
    return {name: index.parent / file for name, file in weight_map.items()}
