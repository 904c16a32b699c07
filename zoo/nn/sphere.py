"""nGPT's constraint that every vector along the sphere axis has unit norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from zoo.utils.exact import exact
from zoo.utils.sharded import local, sum_over_ranks


@torch.no_grad()
def project(matrices: Iterable[tuple[Tensor, int]], skip: Tensor | None = None) -> None:
    """Normalise the vectors of matrices, in place; norms are computed in float32 or float64.

    Sharded tensors (DTensor) are normalised by their global norms; the vectors along sharded axes, of all
    matrices together, take one all-reduce.

    Args:
        matrices: pairs of a matrix and the dimension along which its vectors get unit norm.
        skip: 0-dim bool; if it is True the matrices, which must be finite, keep their values bit for bit.
            None: they are always normalised.
    """
    pairs = [(matrix, local(matrix.detach()), dim) for matrix, dim in matrices]
    squares = []
    for _, weight, dim in pairs:
        squares.append(exact(weight).square().sum(dim, keepdim=True))  # far faster on a CPU than vector_norm
    sum_over_ranks(squares, [matrix for matrix, _, _ in pairs], [(dim,) for _, _, dim in pairs])
    for (_, weight, _), square in zip(pairs, squares, strict=True):
        factor = square.sqrt_().clamp_min_(1e-12).reciprocal_()
        weight.mul_(factor if skip is None else torch.where(skip, 1.0, factor))
