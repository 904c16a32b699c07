"""Elementwise operations on all tensors of a step, in blocks that fit a processor's cache.

An optimizer reads and writes every number of its state once in a step, but in several operations. On whole
tensors each operation reads them from memory again; block by block, only the first one does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from zoo.kernels.foreach import Many
from zoo.optim.skip_flag import restored_if
from zoo.optim.slots import batches

ENTRIES_PER_THREAD = 1 << 17
"""Entries of a block. Seven float32 tensors take 3.7 MB; with smaller blocks the calls cost more."""

COPIED_AT_ONCE = 1 << 26
"""Entries of each column that are copied at once where a step may be left out, 256 MB in float32."""


def changed_blocks(
    skip: Tensor | None, changed: Sequence[Sequence[Tensor]], *others: Sequence[Tensor]
) -> Iterator[list[Many]]:
    """Divide tensors into blocks, some of which are changed, and undo the changes if the step is skipped.

    Args:
        skip: 0-dim bool of `zoo.optim.skip_flag.skip_flag`, True if the step is skipped. If None, this is
            `blocks`.
        changed: columns of weights and slots, see `blocks`.
        *others: further columns.

    Yields:
        For every column its part of the block; the changed columns come first.
    """
    limit = sys.maxsize if skip is None else COPIED_AT_ONCE
    for block in blocks(*changed, *others, at_once=limit):
        with restored_if(skip, [tensor for many in block[: len(changed)] for tensor in many.tensors]):
            yield block


def blocks(*columns: Sequence[Tensor], at_once: int = sys.maxsize) -> Iterator[list[Many]]:
    """Divide tensors of an elementwise computation into blocks.

    On a CPU large tensors are cut and small ones are taken together.

    Args:
        *columns: lists of equal length, for example all parameters, all gradients and all averages. Tensors
            at the same index have one shape; a 0-dim tensor beside larger ones is not cut and is part of
            every block of them.
        at_once: largest number of entries of a column in a block on other devices.

    Yields:
        For every column its part of the block; in-place operations change the given tensors.
    """
    rows: list[Sequence[Tensor]] = list(zip(*columns, strict=True))
    if not rows:
        return
    on_cpu = rows[0][0].device.type == "cpu"
    limit = ENTRIES_PER_THREAD * torch.get_num_threads() if on_cpu else at_once
    pieces = [piece for row in rows for piece in _cut(row, limit)]
    for part in batches([piece[0].numel() for piece in pieces], limit):
        yield [Many(column) for column in zip(*pieces[part], strict=True)]


def _cut(row: Sequence[Tensor], limit: int) -> Iterable[Sequence[Tensor]]:
    """The tensors at one index in pieces of at most `limit` entries; uncut if one is not contiguous."""
    if row[0].numel() <= limit or not all(tensor.is_contiguous() for tensor in row):
        return [row]
    count = -(-row[0].numel() // limit)
    return zip(
        *(torch.split(tensor.view(-1), limit) if tensor.dim() else [tensor] * count for tensor in row),
        strict=True,
    )
