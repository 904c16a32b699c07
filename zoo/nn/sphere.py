"""nGPT's constraint that every vector along the sphere axis has unit norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from zoo.kernels.stacks import alike, copy_back, stack
from zoo.utils.exact import exact
from zoo.utils.sharded import local, sum_over_ranks


@torch.no_grad()
def project(matrices: Iterable[tuple[Tensor, int]], skip: Tensor | None = None) -> None:
    """Normalise the vectors of matrices, in place; norms are computed in float32 or float64.

    Sharded tensors (DTensor) are normalised by their global norms; the vectors along sharded axes, of all
    matrices together, take one all-reduce. On a GPU small matrices of one shape are normalised together.

    Args:
        matrices: pairs of a matrix and the dimension along which its vectors get unit norm.
        skip: 0-dim bool; if it is True the matrices, which must be finite, keep their values bit for bit.
            None: they are always normalised.
    """
    given = [(matrix, dim % matrix.dim()) for matrix, dim in matrices]
    stacks = []
    for indices in alike([matrix for matrix, _ in given], [dim for _, dim in given]):
        weights = [local(given[i][0].detach()) for i in indices]
        stacks.append((*given[indices[0]], weights, stack(weights)))
    # The squares are summed because this is far faster on a CPU than vector_norm.
    squares = [exact(whole).square().sum(dim + 1, keepdim=True) for _, dim, _, whole in stacks]
    sum_over_ranks(squares, [matrix for matrix, *_ in stacks], [(dim,) for _, dim, *_ in stacks])
    for (*_, whole), square in zip(stacks, squares, strict=True):
        factor = square.sqrt_().clamp_min_(1e-12).reciprocal_()
        whole.mul_(factor if skip is None else torch.where(skip, 1.0, factor))
    copy_back([whole for *_, whole in stacks], [weights for _, _, weights, _ in stacks])
