"""Whether the tensors of a file are those that were written: a checksum of each, and no NaN.

The checksums are an entry of a safetensors file's metadata, a JSON object. A tensor has its own under its
name, so that each of several processes can write a file with its part of a checkpoint. The entry "" is that
of the rest of the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from zoo.utils.checksum import Checksum, checksum
from zoo.utils.errors import CheckpointError
from zoo.utils.files import parse_json
from zoo.utils.permissions import Permissions

METADATA = "__metadata__"
"""Key of a header in the format safetensors: strings that are no tensors."""
CHECKSUMS = "checksums"
"""Key of the metadata."""
HEADER = ""
"""Name of the header's own checksum."""
CHUNK = 1 << 21
"""Bytes that are read while others are checked: few enough for the cache of a processor."""
WRITTEN = 1 << 19
"""Bytes that are checked and then written: few enough for the cache of one core."""


def metadata_of(header: Mapping[str, Any]) -> Mapping[str, str]:
    """The metadata of a header, which the format lets be absent or null."""
    return header.get(METADATA) or {}


def checksum_of_header(header: Mapping[str, Any]) -> str:
    """The checksum of a header without its checksums: tensors with their places, and metadata."""
    metadata = {key: value for key, value in metadata_of(header).items() if key != CHECKSUMS}
    return checksum(json.dumps({**header, METADATA: metadata}, sort_keys=True).encode())


def read_checksums(path: Path, header: Mapping[str, Any]) -> Mapping[str, str]:
    """The checksums of a file's tensors; empty for a file without them, from an older zoo or another library.

    Raises:
        CheckpointError: the header is damaged.
    """
    text = metadata_of(header).get(CHECKSUMS)
    if text is None:
        return {}
    sums = parse_json(text, f"{path}: {CHECKSUMS}", CheckpointError)
    complete = isinstance(sums, dict) and sums.keys() == {HEADER, *(header.keys() - {METADATA})}
    if not complete or sums[HEADER] != checksum_of_header(header):
        raise CheckpointError(f"{path}: damaged: the checksum of its header is another")
    return sums  # type: ignore[no-any-return]  # a dict, as was checked


def require_same(path: Path, name: str, actual: str, recorded: str | None) -> None:
    """Compare the checksum of bytes that were read with that of those that were written.

    Raises:
        CheckpointError: the checksums differ.
    """
    if recorded not in (None, actual):
        raise CheckpointError(
            f"{path}: {name} is damaged: its checksum is another than when it was written; restore the file "
            "from a copy, or go on from another checkpoint"
        )


class Reading(NamedTuple):
    """What is known of a tensor that was read.

    Attributes:
        complete: whether the file was long enough.
        checksum: of the bytes.
        finite: whether all entries are certainly finite.
    """

    complete: bool
    checksum: str
    finite: bool


def read_checked(file: BinaryIO, target: Tensor) -> Reading:
    """Read a tensor from a file, while a thread checks what has been read.

    Args:
        file: at the first byte of the tensor.
        target: contiguous and on the CPU; it gets the numbers.
    """
    total, flat = Checksum(), target.reshape(-1)

    def check(part: Tensor) -> bool:
        total.update(bytes_of(part))
        return _sums_to_a_finite_number(part)

    parts = torch.split(flat, max(1, CHUNK // flat.element_size()))
    if len(parts) == 1:
        complete = file.readinto(bytes_of(flat)) == flat.nbytes  # type: ignore[attr-defined]  # files have it
        finite = check(flat)
        return Reading(complete, total.text, finite)
    with ThreadPoolExecutor(1) as thread:
        checks = []
        for part in parts:
            if file.readinto(bytes_of(part)) != part.nbytes:  # type: ignore[attr-defined]  # as above
                return Reading(False, "", False)
            checks.append(thread.submit(check, part))
        finite = all(done.result() for done in checks)
    return Reading(True, total.text, finite)


def write_checked(file: BinaryIO, data: memoryview) -> str:
    """Write bytes, and return their checksum.

    It is computed of one part after the other, each of which is written while it is in the processor's cache:
    the memory is read once. A thread beside the write costs more than the checksum itself.
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
    """Whether a sum is finite: all entries are, unless it overflows. It needs no memory, as isfinite does.

    Sums of 16 bits are accumulated in 32 by torch; in another dtype than the tensor's they would copy it.
    """
    return Permissions.non_finite or not tensor.is_floating_point() or bool(tensor.sum().isfinite())


def require_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor with entries that are NaN or infinite, unless `Permissions.non_finite`.

    Raises:
        CheckpointError: there are such entries.
    """
    if not _sums_to_a_finite_number(tensor) and not tensor.isfinite().all():
        raise CheckpointError(
            f"{path}: {name} has entries that are not finite; expected finite numbers (--allow-non-finite "
            "loads it nevertheless)"
        )
