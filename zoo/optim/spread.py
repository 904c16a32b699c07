"""Work on whole matrices, spread over the ranks that hold their rows.

Gathering every matrix on every rank would repeat the work on all of them. Instead an all-to-all brings each
matrix to one rank, and a second one takes the rows of the result back: every
rank sends and receives twice its own shard, where an all-gather would bring it all matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.optim.slots import batches
from zoo.utils.sharded import is_sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

LIMIT = 2**30
"""Number of entries of all ranks' matrices that are on their way at a time."""


def can_spread(tensor: Tensor) -> bool:
    """Whether a tensor is sharded by rows, over one dimension of a mesh."""
    if not is_sharded(tensor):
        return False
    shards = [p for p in tensor.placements if not p.is_replicate()]
    return len(shards) == 1 and shards[0].is_shard(0)


def spread(tensors: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Apply a function to whole tensors, each on one rank.

    Args:
        tensors: sharded by rows over the same ranks (`can_spread`), of one dtype.
        work: called with a whole tensor; returns one of its shape and dtype.

    Returns:
        This rank's rows of the results, in the order of `tensors`.
    """
    results: list[Tensor] = []
    for part in batches([tensor.numel() for tensor in tensors], LIMIT):
        results += _spread([t for t in tensors[part] if is_sharded(t)], work)
    return results


def _spread(tensors: Sequence[DTensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    mesh = tensors[0].device_mesh
    dim = next(i for i, p in enumerate(tensors[0].placements) if p.is_shard())
    group, ranks, own = mesh.get_group(dim), mesh.size(dim), mesh.get_local_rank(dim)
    shards = [tensor.to_local() for tensor in tensors]
    mine = owners([tensor.numel() for tensor in tensors], ranks)
    # To rank r: this rank's rows of the matrices of r. From rank r: its rows of this rank's matrices.
    sent = torch.cat([shards[i].reshape(-1) for theirs in mine for i in theirs])
    to = [sum(shards[i].numel() for i in theirs) for theirs in mine]
    widths = [math.prod(tensor.shape[1:]) for tensor in tensors]
    sizes = [[_rows(tensors[i], r, ranks) * widths[i] for i in mine[own]] for r in range(ranks)]
    received = _exchange(sent, [sum(size) for size in sizes], to, group)
    blocks = [
        torch.split(part, size)
        for part, size in zip(torch.split(received, [*map(sum, sizes)]), sizes, strict=True)
    ]
    done = [
        work(torch.cat([block[j] for block in blocks]).view(tensors[i].shape)).reshape(-1)
        for j, i in enumerate(mine[own])
    ]
    back = [torch.split(result, [size[j] for size in sizes]) for j, result in enumerate(done)]
    sent = torch.cat([rows[r] for r in range(ranks) for rows in back] or [sent[:0]])
    received = _exchange(sent, to, [sum(size) for size in sizes], group)
    order = [i for theirs in mine for i in theirs]
    pieces = dict(zip(order, torch.split(received, [shards[i].numel() for i in order]), strict=True))
    return [pieces[i].view(shards[i].shape) for i in range(len(tensors))]


def owners(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Which tensors each rank works on: the largest first, always on the rank with the least work."""
    mine: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        rank = load.index(min(load))
        mine[rank].append(i)
        load[rank] += sizes[i]
    return mine


def _rows(tensor: DTensor, rank: int, ranks: int) -> int:
    """How many rows of a tensor a rank holds, see `zoo.utils.sharded.own_slices`."""
    rows = tensor.shape[0]
    piece = -(-rows // ranks)
    return max(0, min(piece, rows - rank * piece))


def _exchange(sent: Tensor, sizes: list[int], to: list[int], group: dist.ProcessGroup) -> Tensor:
    """An all-to-all of entries; as bytes, because gloo does not know every dtype."""
    received = sent.new_empty(sum(sizes))
    width = sent.element_size()
    dist.all_to_all_single(
        received.view(torch.uint8),
        sent.view(torch.uint8),
        [size * width for size in sizes],
        [size * width for size in to],
        group=group,
    )
    return received
