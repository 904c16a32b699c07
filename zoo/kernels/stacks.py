"""Tensors of one shape as one tensor, so that an operation on all of them is one call.

A GPU computes with a small matrix in less time than a host takes to ask for it. On a GPU the small tensors of
one shape are therefore copied into one tensor, computed with, and copied back. On a CPU, where a copy costs
more than a call, every tensor is alone in its stack, which is a view of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from zoo.kernels.foreach import Many
from zoo.utils.sharded import is_sharded

LARGEST = 1 << 19
"""Number of entries of the largest tensor that is copied into a stack. A larger one keeps a GPU busy."""
AT_ONCE = 1 << 24
"""Number of entries of the largest stack of several tensors."""
COPY_COSTS_MORE = frozenset({"cpu"})
"""Types of devices on which a copy of a small tensor takes longer than a call."""


def is_alone(tensor: Tensor) -> bool:
    """Whether an operation on a tensor is a call of its own: on a CPU, and where the tensor is large."""
    return tensor.device.type in COPY_COSTS_MORE or tensor.numel() > LARGEST


def alike(tensors: Sequence[Tensor], keys: Sequence[Hashable] | None = None) -> list[list[int]]:
    """Divide tensors into stacks.

    Args:
        tensors: tensors of any shapes and devices.
        keys: for each tensor what has to be equal within a stack besides shape, dtype and device; None:
            nothing else.

    Returns:
        The indices of the members of every stack. Sharded tensors are alone, and those that `is_alone` names.
    """
    stacks: dict[Hashable, list[list[int]]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        alone = is_sharded(tensor) or is_alone(tensor)
        of_shape = (tuple(tensor.shape), tensor.dtype, tensor.device)
        parts = stacks[i if alone else (of_shape, keys[i] if keys else None)]
        if not parts or (len(parts[-1]) + 1) * tensor.numel() > AT_ONCE:
            parts.append([])
        parts[-1].append(i)
    return [indices for parts in stacks.values() for indices in parts]


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape along a new first dimension: a copy, or a view of a single tensor."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))


def copy_back(stacks: Sequence[Tensor], columns: Sequence[Sequence[Tensor]]) -> None:
    """Copy stacks that were changed in place to their members; that of a single tensor is a view of it."""
    copied = [(whole, column) for whole, column in zip(stacks, columns, strict=True) if len(column) > 1]
    if copied:
        members = Many([tensor for _, column in copied for tensor in column])
        members.copy_(Many([tensor for whole, _ in copied for tensor in whole.unbind()]))
