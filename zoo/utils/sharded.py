"""Unsharded tensors from DTensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """The unsharded tensor of a DTensor (all ranks must call this); a plain tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Unsharded copies on the CPU, made one by one, so that no rank holds more than one tensor twice.

    Args:
        tensors: plain or sharded; the same names on all ranks.
        keep: whether this rank keeps the copies; all ranks must call this.

    Returns:
        Contiguous tensors by name; empty if `keep` is false.
    """
    copies = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            copies[name] = full.to("cpu", copy=True).contiguous()
    return copies
