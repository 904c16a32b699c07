"""Computations on whole matrices, distributed over the ranks that hold their rows.

Gathering every matrix on every rank would repeat the work on all ranks. Instead an all-to-all sends each
matrix to one rank, and a second one returns the rows of the result: every rank sends and receives twice its
own shard, whereas an all-gather would send it all matrices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.optim.sharding import placed_like
from zoo.optim.slots import batches
from zoo.utils.sharded import is_sharded, local, whole

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

LIMIT = 2**30
"""Number of entries, of all ranks' matrices together, that are sent at a time."""

Work = Callable[[Sequence[int], Sequence[Tensor]], list[Tensor]]
"""A function of the indices of some tensors and of the whole tensors; returns one of equal shape each."""


def is_sharded_by_rows(tensor: Tensor) -> bool:
    """Whether a tensor is sharded by rows, over one dimension of a mesh."""
    if not is_sharded(tensor):
        return False
    shards = [p for p in tensor.placements if not p.is_replicate()]
    return len(shards) == 1 and shards[0].is_shard(0)


def map_whole_matrices(tensors: Sequence[Tensor], work: Work) -> list[Tensor]:
    """Apply a function to whole tensors.

    Tensors that are sharded by rows go to one rank each. Tensors that are sharded in another way are
    gathered, and every rank does the work of all.

    Args:
        tensors: plain or sharded.
        work: a function that returns tensors of the dtypes of its arguments.

    Returns:
        This rank's rows of the results, in the order of `tensors`.
    """
    results: dict[int, Tensor] = {}
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        ranks: Hashable = None
        if is_sharded(tensor) and is_sharded_by_rows(tensor):
            ranks = tensor.device_mesh, tensor.placements, tensor.dtype
        alike[ranks].append(i)
    for ranks, indices in alike.items():
        if ranks is None:
            processed = work(indices, [whole(tensors[i]) for i in indices])
            results.update(
                (i, local(placed_like(new, tensors[i])) if is_sharded(tensors[i]) else new)
                for i, new in zip(indices, processed, strict=True)
            )
            continue
        for part in batches([tensors[i].numel() for i in indices], LIMIT):
            sharded = {i: tensor for i in indices[part] if is_sharded(tensor := tensors[i])}
            results.update(zip(sharded, _map_on_owners(sharded, work), strict=True))
    return [results[i] for i in range(len(tensors))]


def _map_on_owners(by_index: Mapping[int, DTensor], work: Work) -> list[Tensor]:
    indices, tensors = list(by_index), list(by_index.values())
    mesh = tensors[0].device_mesh
    dim = next(i for i, p in enumerate(tensors[0].placements) if p.is_shard())
    group, ranks, rank = mesh.get_group(dim), mesh.size(dim), mesh.get_local_rank(dim)
    shards = [tensor.to_local() for tensor in tensors]
    mine = owners([tensor.numel() for tensor in tensors], ranks)
    # To rank r: this rank's rows of the matrices of r. From rank r: its rows of this rank's matrices.
    sent = torch.cat([shards[i].reshape(-1) for theirs in mine for i in theirs])
    to = [sum(shards[i].numel() for i in theirs) for theirs in mine]
    widths = [math.prod(tensor.shape[1:]) for tensor in tensors]
    sizes = [[_rows(tensors[i], r, ranks) * widths[i] for i in mine[rank]] for r in range(ranks)]
    received = _exchange(sent, [sum(size) for size in sizes], to, group)
    blocks = [
        torch.split(part, size)
        for part, size in zip(torch.split(received, [*map(sum, sizes)]), sizes, strict=True)
    ]
    gathered = [
        torch.cat([block[j] for block in blocks]).view(tensors[i].shape) for j, i in enumerate(mine[rank])
    ]
    done = work([indices[i] for i in mine[rank]], gathered)
    back = [torch.split(result.reshape(-1), [size[j] for size in sizes]) for j, result in enumerate(done)]
    sent = torch.cat([rows[r] for r in range(ranks) for rows in back] or [sent[:0]])
    received = _exchange(sent, to, [sum(size) for size in sizes], group)
    order = [i for theirs in mine for i in theirs]
    pieces = dict(zip(order, torch.split(received, [shards[i].numel() for i in order]), strict=True))
    return [pieces[i].view(shards[i].shape) for i in range(len(tensors))]


def owners(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """The tensors that each rank works on: the largest first, each for the rank with the least work."""
    mine: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        rank = load.index(min(load))
        mine[rank].append(i)
        load[rank] += sizes[i]
    return mine


def _rows(tensor: DTensor, rank: int, ranks: int) -> int:
    """The number of rows of a tensor that a rank holds, see `zoo.utils.sharded.own_slices`."""
    rows = tensor.shape[0]
    piece = -(-rows // ranks)
    return max(0, min(piece, rows - rank * piece))


def _exchange(sent: Tensor, sizes: list[int], to: list[int], group: dist.ProcessGroup) -> Tensor:
    """An all-to-all of entries, sent as bytes because gloo does not support every dtype."""
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
