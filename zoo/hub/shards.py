"""The tensors of a Hugging Face folder: one safetensors file, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from zoo.checkpoint.integrity import bytes_of, require_finite, require_same
from zoo.checkpoint.safetensors import checksums_of, count_entries, open_tensors, write_tensors
from zoo.data.files import read_object
from zoo.utils.checksum import checksum
from zoo.utils.errors import CheckpointError, DataError
from zoo.utils.printable import first_few
from zoo.utils.progress import progress
from zoo.utils.untyped import JsonObject

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Maximal size of a file with more than one tensor, in bytes."""
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtypes of safetensors whose values float32 represents exactly, and torch's names of them."""


@dataclass(frozen=True)
class TensorEntry:
    """The location of a tensor, and its shape and dtype according to the file's header."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def read_json(path: Path) -> JsonObject:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: The file cannot be read, or does not hold a JSON object.
    """
    try:
        return read_object(path)
    except DataError as error:
        raise CheckpointError(str(error)) from error


def read_headers(folder: Path) -> dict[str, TensorEntry]:
    """List the tensors of a folder, from the headers of its files; no tensor is read.

    Args:
        folder: a folder with ``model.safetensors``, or otherwise with an index and the files that it names.

    Raises:
        CheckpointError: A file is missing or truncated, or the index contradicts the files.
    """
    index = folder / INDEX
    entries: dict[str, TensorEntry] = {}
    # Where both are there, transformers reads the single file too: saving again leaves an old index behind.
    where = _indexed(index) if index.is_file() and not (folder / SINGLE).is_file() else {}
    for file in dict.fromkeys(where.values()) or [_single(folder)]:
        with open_tensors(file) as handle:
            for name in handle.keys():  # noqa: SIM118
                part = handle.get_slice(name)
                if name in entries:
                    raise CheckpointError(f"{file}: {name} is in {entries[name].file.name} as well")
                entries[name] = TensorEntry(file, name, tuple(part.get_shape()), part.get_dtype())
    lost = [name for name, file in where.items() if name not in entries or entries[name].file != file]
    if lost:
        raise CheckpointError(f"{index}: {first_few(lost)}: not in the file it names")
    return entries


def stream_tensors(jobs: Iterable[tuple[TensorEntry, Callable[[Tensor], None]]]) -> None:
    """Read tensors file by file, so that the pages of at most one file are in memory.

    Args:
        jobs: the location of a tensor, and the function that is called with it; the tensor is a view of the
            mapped file and has to be copied.

    Raises:
        CheckpointError: A tensor is not finite, or does not match its checksum in a file of zoo.
    """

    def file_of(job: tuple[TensorEntry, Callable[[Tensor], None]]) -> Path:
        return job[0].file

    ordered = sorted(jobs, key=file_of)
    with progress("reading tensors", sum(prod(entry.shape) for entry, _ in ordered)) as advance:
        for file, group in groupby(ordered, file_of):
            with open_tensors(file) as handle:
                recorded = checksums_of(file)
                for entry, take in group:
                    tensor = handle.get_tensor(entry.name)
                    if entry.name in recorded:
                        require_same(file, entry.name, checksum(bytes_of(tensor)), recorded[entry.name])
                    require_finite(file, entry.name, tensor)
                    take(tensor)
                    advance(prod(entry.shape))


def write_shards(folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, shard_bytes: int) -> None:
    """Write tensors to one file, or to several with an index.

    Args:
        folder: an existing folder.
        tensors: floating-point tensors on the CPU.
        dtype: dtype in the files.
        shard_bytes: maximal size of a file with more than one tensor.
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
    with progress("writing tensors", count_entries(tensors)) as advance:
        for file, names in zip(files, groups, strict=True):
            # safetensors accepts neither views nor tensors that share memory.
            part = {name: tensors[name].to(dtype, copy=True).contiguous() for name in names}
            write_tensors(folder / file, part, {"format": "pt"}, advance)
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
        hint = f"; it has {first_few(others)}" if others else ""
        if pickles:
            hint += ": zoo never opens a pickle, which may run code; convert it to safetensors first"
        raise CheckpointError(f"{folder}: expected {SINGLE} or {INDEX}{hint}")
    return file


def _indexed(index: Path) -> dict[str, Path]:
    """The file of each tensor; an index may name only files in its own folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map: expected an object of tensors and files")
    siblings = {path.name for path in index.parent.iterdir() if path.is_file()}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: {name}: {file!r}; expected the name of a .safetensors file in its folder"
            )
        if file not in siblings:
            raise CheckpointError(f"{index}: {name}: no file {file!r} in its folder")
    return {name: index.parent / file for name, file in weight_map.items()}
