"""Whole tensors, and the parts of them that a rank holds."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_sharded(tensor: Tensor) -> TypeIs[DTensor]:
    """Whether a tensor is a DTensor, without importing their module, which takes half a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The shard of `tensor` on this rank, or a plain tensor itself; the memory is shared."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def own_slices(tensor: DTensor) -> tuple[slice, ...]:
    """The part of a sharded tensor that this rank holds, one slice for each dimension.

    DTensor divides a dimension of n entries among r ranks into pieces of ceil(n / r), as `torch.chunk` does;
    the last ranks may hold fewer entries or none.
    """
    from torch.distributed.tensor import Shard

    begins, sizes = [0] * tensor.dim(), list(tensor.shape)
    for i, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            ranks, rank = tensor.device_mesh.size(i), tensor.device_mesh.get_local_rank(i)
            piece = -(-sizes[placement.dim] // ranks)
            begin = min(rank * piece, sizes[placement.dim])
            begins[placement.dim] += begin
            sizes[placement.dim] = min(piece, sizes[placement.dim] - begin)
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, which is read when it is assigned to another one.

    Attributes:
        shape, dtype: shape and dtype of the whole tensor.
        read: a function that reads the tensor, or the part that a shard holds, into an existing tensor.
    """

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[Tensor], None]


def assign(target: Tensor, value: Tensor | Stored) -> None:
    """Copy a whole tensor, which need not be in memory, into a plain tensor or the part that a shard holds.

    Args:
        target: a tensor of any device and dtype, which is overwritten.
        value: a tensor of the same shape; only the rank's own part of a file is read.
    """
    if isinstance(value, Stored):
        value.read(target)
    elif is_sharded(target):
        target.to_local().copy_(value[own_slices(target)])
    else:
        target.copy_(value)


def whole(tensor: Tensor) -> Tensor:
    """The unsharded tensor of a DTensor (all ranks must call this function); a plain tensor unchanged."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def gathered(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Unsharded copies on the CPU, made one by one, so that no rank holds more than one tensor twice.

    Args:
        tensors: plain or sharded tensors; the same names on all ranks.
        keep: whether this rank keeps the copies; all ranks must call this function.

    Returns:
        Contiguous tensors by name; empty if `keep` is false.
    """
    copies = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            copies[name] = full.to("cpu", copy=True).contiguous()
    return copies


def sum_over_ranks(
    sums: Sequence[Tensor], parameters: Sequence[Tensor], dims: Sequence[tuple[int, ...]]
) -> None:
    """Complete local sums in place: those over a sharded dimension are summed over its ranks.

    Args:
        sums: Local sums, one for each parameter.
        parameters: The parameters that were summed, sharded or not.
        dims: For each parameter, the dimensions that were summed over.
    """
    crossing: dict[tuple[ProcessGroup, torch.dtype], list[Tensor]] = defaultdict(list)
    for total, parameter, over in zip(sums, parameters, dims, strict=True):
        if is_sharded(parameter):
            for i, placement in enumerate(parameter.placements):
                if any(placement.is_shard(d) for d in over):
                    crossing[parameter.device_mesh.get_group(i), total.dtype].append(total)
    for (group, _), parts in crossing.items():
        flat = torch.cat([part.reshape(-1) for part in parts])
        torch.distributed.all_reduce(flat, group=group)
        for part, summed in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            part.copy_(summed.view_as(part))


def norms(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norms of whole tensors, the same on all ranks, with one all-reduce for all.

    Args:
        tensors: plain or sharded tensors, the same on all ranks; they are processed one after the other.

    Returns:
        (tensors,), in float32 or float64: bfloat16 would round them to two digits.
    """
    of_tensors: list[Tensor] = []
    crossing: dict[ProcessGroup, list[int]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        of_tensors.append(torch.linalg.vector_norm(local(tensor), dtype=dtype))
        if is_sharded(tensor):
            for mesh_dim, placement in enumerate(tensor.placements):
                if placement.is_shard():
                    crossing[tensor.device_mesh.get_group(mesh_dim)].append(i)
    if not crossing:
        return torch.stack(of_tensors) if of_tensors else torch.zeros(0)
    squares = torch.stack(of_tensors).double().square()
    for group, members in crossing.items():
        part = squares[members]
        torch.distributed.all_reduce(part, group=group)
        squares[members] = part
    return squares.sqrt().to(of_tensors[0].dtype)
