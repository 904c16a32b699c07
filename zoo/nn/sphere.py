"""nGPT's constraint that every vector along the sphere axis has unit norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def project(matrices: Iterable[tuple[Tensor, int]]) -> None:
    """Normalise the vectors of matrices, in place; norms are computed in float32 or float64.

    Sharded tensors (DTensor) are normalised by their global norms, also along a sharded axis.

    Args:
        matrices: pairs of a matrix and the dimension along which its vectors get unit norm.
    """
    for matrix, dim in matrices:
        weight = matrix.detach()
        exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
        norm = exact.square().sum(dim, keepdim=True).sqrt()  # far faster on a CPU than vector_norm
        weight.mul_(norm.clamp_min(1e-12).reciprocal())
