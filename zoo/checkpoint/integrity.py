"""The integrity of tensors in files: a checksum of each tensor, and no NaN or infinity.

The checksums are a JSON object in the metadata of a safetensors file. There is one for each tensor under its
name, so that each of several processes can write a file with its part of a checkpoint. The key "" has the
checksum of the rest of the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from zoo.utils.checksum import Checksum, checksum
from zoo.utils.errors import CheckpointError
from zoo.utils.files import parse_json
from zoo.utils.permissions import Permissions
from zoo.utils.untyped import JsonObject

METADATA = "__metadata__"
"""Key of the metadata, a mapping of strings, in a safetensors header."""
CHECKSUMS = "checksums"
"""Key of the checksums in the metadata."""
HEADER = ""
"""Key of the header's own checksum."""
CHUNK = 1 << 21
"""Number of bytes that are read while others are checked; they fit a processor's cache."""
WRITTEN = 1 << 19
"""Number of bytes that are checked and then written; they fit the cache of one core."""


def metadata_of(header: JsonObject) -> Mapping[str, str]:
    """The metadata of a header, which may be absent or null in the format."""
    return header.get(METADATA) or {}


def checksum_of_header(header: JsonObject) -> str:
    """The checksum of a header without its checksums: the tensors with their offsets, and the metadata."""
    metadata = {key: value for key, value in metadata_of(header).items() if key != CHECKSUMS}
    return checksum(json.dumps({**header, METADATA: metadata}, sort_keys=True).encode())


def read_checksums(path: Path, header: JsonObject) -> Mapping[str, str]:
    """The checksums of a file's tensors; empty if the file, of an older zoo or another library, has none.

    Raises:
        CheckpointError: The header is damaged.
    """
    text = metadata_of(header).get(CHECKSUMS)
    if text is None:
        return {}
    sums = parse_json(text, f"{path}: {CHECKSUMS}", CheckpointError)
    complete = {HEADER, *(header.keys() - {METADATA})}
    if not isinstance(sums, dict) or sums.keys() != complete or sums[HEADER] != checksum_of_header(header):
        raise CheckpointError(f"{path}: damaged: the checksum of its header is another")
    return sums


def require_same(path: Path, name: str, actual: str, recorded: str | None) -> None:
    """Compare the checksum of the bytes that were read with the recorded one.

    Raises:
        CheckpointError: The checksums differ.
    """
    if recorded not in (None, actual):
        raise CheckpointError(
            f"{path}: {name} is damaged: its checksum is another than when it was written; restore the file "
            "from a copy, or go on from another checkpoint"
        )


class Reading(NamedTuple):
    """The result of reading a tensor.

    Attributes:
        complete: whether the file was long enough.
        checksum: the checksum of the bytes.
        finite: whether all entries are certainly finite.
    """

    complete: bool
    checksum: str
    finite: bool


def read_checked(file: BufferedReader, target: Tensor) -> Reading:
    """Read a tensor from a file, while a thread checks the bytes that have been read.

    Args:
        file: the file, positioned at the first byte of the tensor.
        target: a contiguous tensor on the CPU, which is filled.
    """
    total, flat = Checksum(), target.reshape(-1)

    def check(part: Tensor) -> bool:
        total.update(bytes_of(part))
        return _sums_to_a_finite_number(part)

    parts = torch.split(flat, max(1, CHUNK // flat.element_size()))
    if len(parts) == 1:
        complete = file.readinto(bytes_of(flat)) == flat.nbytes
        finite = check(flat)
        return Reading(complete, total.text, finite)
    with ThreadPoolExecutor(1) as thread:
        checks = []
        for part in parts:
            if file.readinto(bytes_of(part)) != part.nbytes:
                return Reading(False, "", False)
            checks.append(thread.submit(check, part))
        finite = all(done.result() for done in checks)
    return Reading(True, total.text, finite)


def write_checked(file: BinaryIO, data: memoryview) -> str:
    """Write bytes, and return their checksum.

    The checksum is computed part by part, and each part is written while it is in the processor's cache, so
    that memory is read once. A separate thread would cost more than the checksum itself.
    """
    total = Checksum()
    for begin in range(0, len(data), WRITTEN):
        part = data[begin : begin + WRITTEN]
        total.update(part)
        file.write(part)
    return total.text


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # it is one


def _sums_to_a_finite_number(tensor: Tensor) -> bool:
    """Whether the sum is finite, which implies that all entries are; unlike isfinite it needs no memory.

    torch accumulates sums of 16-bit numbers in 32 bits; a sum in another dtype would copy the tensor.
    """
    return Permissions.non_finite or not tensor.is_floating_point() or bool(tensor.sum().isfinite())


def require_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor with NaN or infinite entries, unless `Permissions.non_finite` is set.

    Raises:
        CheckpointError: An entry is NaN or infinite.
    """
    if not _sums_to_a_finite_number(tensor) and not tensor.isfinite().all():
        raise CheckpointError(
            f"{path}: {name} has entries that are not finite; expected finite numbers (--allow-non-finite "
            "loads it nevertheless)"
        )
