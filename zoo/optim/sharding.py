"""Sharded parameters (`DTensor`) in optimizers: local shards, and sums over all ranks.

Under FSDP2 each rank holds some rows of every parameter; their number may differ between ranks.
Elementwise operations use the local shard. A sum over a sharded dimension is completed by an
all-reduce, and a mean divides by the global number of entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.optim.slots import slot_dtype
from zoo.spec import reduced_shape
from zoo.utils.sharded import Stored, assign, is_sharded, local, sum_over_ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement


def crosses_ranks(tensor: Tensor, dims: Sequence[int]) -> bool:
    """Whether a reduction of `tensor` over `dims` needs the shards of other ranks."""
    return is_sharded(tensor) and any(p.is_shard(d) for p in tensor.placements for d in dims)


def reduced_placements(tensor: DTensor, dims: Sequence[int]) -> list[Placement]:
    """The placements of a reduction of `tensor` over `dims` that keeps the dimensions with size 1.

    Raises:
        ValueError: A placement of the tensor is neither `Shard` nor `Replicate`.
    """
    from torch.distributed.tensor import Replicate, Shard

    for placement in tensor.placements:
        if not placement.is_shard() and not placement.is_replicate():
            raise ValueError(f"cannot optimize a parameter placed as {tensor.placements}")
    return [Replicate() if isinstance(p, Shard) and p.dim in dims else p for p in tensor.placements]


def reduced_like(parameter: Tensor, dims: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of the shape of `parameter` with `dims` reduced to size 1, sharded as the reduction would be."""
    shape = reduced_shape(parameter.shape, dims)
    if not is_sharded(parameter):
        return torch.zeros(shape, dtype=dtype, device=parameter.device)
    from torch.distributed.tensor import DTensor

    part = parameter.to_local()
    return DTensor.from_local(
        torch.zeros(reduced_shape(part.shape, dims), dtype=dtype, device=part.device),
        parameter.device_mesh,
        reduced_placements(parameter, dims),
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def totals(parameters: Sequence[Tensor]) -> list[Tensor]:
    """A 0-dim zero for each parameter, to which sums over its entries are added."""
    return [torch.zeros((), dtype=slot_dtype(p), device=local(p).device) for p in parameters]


def complete(sums: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Turn sums over this rank's entries of each parameter into sums over all entries, in place."""
    sum_over_ranks(sums, parameters, [tuple(range(parameter.dim())) for parameter in parameters])


def placed_like(value: Tensor | Stored, like: Tensor) -> Tensor:
    """A copy of `value`, whole on all ranks or in a file, with the dtype, device and sharding of `like`."""
    placed = torch.empty_like(like, memory_format=torch.contiguous_format)
    assign(placed.detach(), value)
    return placed
