"""Elementwise work on all tensors of a step, cut into pieces that a processor's cache holds.

An optimizer reads and writes every number of its state once in a step, but in several operations. Done with
whole tensors each operation fetches them from memory again; done piece by piece, only the first one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from zoo.kernels.foreach import Many
from zoo.optim.slots import batches

ENTRIES_PER_THREAD = 1 << 17
"""Seven float32 tensors of them take 3.7 MB; with fewer, the calls of operations begin to cost more."""


def blocks(*columns: Sequence[Tensor]) -> Iterator[list[Many]]:
    """Go through tensors that are computed with entry by entry.

    On a CPU large tensors are cut and small ones are taken together. Other devices get all at once.

    Args:
        *columns: lists of equal length, for example all parameters, all gradients and all averages. At one
            place the tensors have one shape; a 0-dim tensor beside larger ones is not cut and comes with
            every piece of them.

    Yields:
        For every column its part of the block; an operation in place changes the given tensors.
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
    """The tensors at one place in pieces of at most `limit` entries; as they are if one is not contiguous."""
    if row[0].numel() <= limit or not all(tensor.is_contiguous() for tensor in row):
        return [row]
    count = -(-row[0].numel() // limit)
    return zip(
        *(torch.split(tensor.view(-1), limit) if tensor.dim() else [tensor] * count for tensor in row),
        strict=True,
    )
