"""Whole tensors from sharded ones."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (all ranks must ask), or a plain tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Whole copies on the CPU, made one by one, so that no rank holds more than one tensor twice.

    Args:
        tensors: plain or sharded; the same names on all ranks.
        keep: whether this rank wants them (all have to take part).

    Returns:
        Contiguous tensors by name; empty where they are not wanted.
    """
    copies = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            copies[name] = full.to("cpu", copy=True).contiguous()
    return copies
