"""Whether the tensors of a file are those that were written: a checksum of each, and no NaN.

The checksums are an entry of a safetensors file's metadata, a JSON object. A tensor has its own under its
name, so that each of several processes can write a file with its part of a checkpoint. The entry "" is that
of the rest of the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.utils.checksum import checksum
from zoo.utils.errors import CheckpointError
from zoo.utils.files import parse_json
from zoo.utils.permissions import Permissions

METADATA = "__metadata__"
"""Key of a header in the format safetensors: strings that are no tensors."""
CHECKSUMS = "checksums"
"""Key of the metadata."""
HEADER = ""
"""Name of the header's own checksum."""


def checksum_of_header(header: Mapping[str, Any]) -> str:
    """The checksum of a header without its checksums: tensors with their places, and metadata."""
    metadata = {key: value for key, value in header.get(METADATA, {}).items() if key != CHECKSUMS}
    return checksum(json.dumps({**header, METADATA: metadata}, sort_keys=True).encode())


def read_checksums(path: Path, header: Mapping[str, Any]) -> Mapping[str, str]:
    """The checksums of a file's tensors; empty for a file without them, from an older zoo or another library.

    Raises:
        CheckpointError: the header is damaged.
    """
    text = header.get(METADATA, {}).get(CHECKSUMS)
    if text is None:
        return {}
    sums = parse_json(text, f"{path}: {CHECKSUMS}", CheckpointError)
    complete = isinstance(sums, dict) and sums.keys() == {HEADER, *(header.keys() - {METADATA})}
    if not complete or sums[HEADER] != checksum_of_header(header):
        raise CheckpointError(f"{path}: damaged: the checksum of its header is another")
    return sums  # type: ignore[no-any-return]  # a dict, as was checked


def require_same(path: Path, name: str, found: str, recorded: str | None) -> None:
    """Compare the checksum of bytes that were read with that of those that were written.

    Raises:
        CheckpointError: they differ.
    """
    if recorded not in (None, found):
        raise CheckpointError(
            f"{path}: {name} is damaged: its checksum is another than when it was written; restore the file "
            "from a copy, or go on from another checkpoint"
        )


def require_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor with entries that are NaN or infinite, unless `Permissions.non_finite`.

    Raises:
        CheckpointError: there are such entries.
    """
    if Permissions.non_finite or not tensor.is_floating_point():
        return
    # The sum is finite if all entries are, unless it overflows, and needs no memory.
    if not tensor.sum(dtype=torch.float64).isfinite() and not tensor.isfinite().all():
        raise CheckpointError(
            f"{path}: {name} has entries that are not finite; expected finite numbers (--allow-non-finite "
            "loads it nevertheless)"
        )
