"""Elementwise operations on all tensors of a step, in blocks that fit a processor's cache.

An optimizer reads and writes every number of its state once in a step, but in several operations. On whole
tensors each operation reads them from memory again; block by block, only the first one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from zoo.kernels.foreach import Many
from zoo.optim.slots import batches

ENTRIES_PER_THREAD = 1 << 17
"""Entries of a block. Seven float32 tensors take 3.7 MB; with smaller blocks the calls cost more."""


def blocks(*columns: Sequence[Tensor]) -> Iterator[list[Many]]:
    """Divide tensors of an elementwise computation into blocks.

    On a CPU large tensors are cut and small ones are taken together. On other devices there is a single
    block.

    Args:
        *columns: lists of equal length, for example all parameters, all gradients and all averages. Tensors
            at the same index have one shape; a 0-dim tensor beside larger ones is not cut and is part of
            every block of them.

    Yields:
        For every column its part of the block; in-place operations change the given tensors.
    """
    rows: list[Sequence[Tensor]] = list(zip(*columns, strict=True))
    if not rows:
        return
    if rows[0][0].device.type != "cpu":
        yield [Many(column) for column in columns]
        return
    limit = ENTRIES_PER_THREAD * torch.get_num_threads()
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
