"""nGPT's constraint: every vector along the sphere axis has unit norm, computed in float32."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def project(matrices: Iterable[tuple[Tensor, int]]) -> None:
    """Put matrices back on the sphere, in place.

    Sharded tensors (DTensor) are normalised by their global norms, also along a sharded axis.

    Args:
        matrices: each with the dimension whose vectors get unit norm.
    """
    for matrix, dim in matrices:
        weight = matrix.detach()
        norm = torch.linalg.vector_norm(weight, dim=dim, keepdim=True, dtype=_accurate(weight.dtype))
        weight.div_(norm.clamp_min(1e-12))


def _accurate(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
