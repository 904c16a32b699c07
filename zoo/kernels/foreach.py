"""One call for many tensors: torch's private ``_foreach`` functions, and a loop where torch has none."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.kernels.support import has_function

COPY = has_function("_foreach_copy_")
LERP = has_function("_foreach_lerp_")
NORM = has_function("_foreach_norm")


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, in place; shapes are equal pairwise."""
    if COPY:
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def lerp_all(starts: list[Tensor], ends: list[Tensor], weight: float) -> None:
    """Move each start towards its end by the fraction `weight` of their difference, in place."""
    if LERP:
        torch._foreach_lerp_(starts, ends, weight)
        return
    for start, end in zip(starts, ends, strict=True):
        start.lerp_(end, weight)


def norms(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, (tensors,)."""
    if NORM:
        return torch.stack(torch._foreach_norm(tensors))
    return torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])
