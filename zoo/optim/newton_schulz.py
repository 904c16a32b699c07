"""The orthogonal factor of a matrix by polynomials of odd degree: the Newton-Schulz iteration of Muon.

A step maps every singular value s to a s + b s^3 + c s^5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Literal

import torch
from torch import Tensor

from zoo.kernels.matmul import lacks_instructions

Coefficients = Literal["newton_schulz", "polar_express"]
Triple = tuple[float, float, float]

QUINTIC: Triple = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's coefficients: a steep slope at 0, and results between .5 and 1.5."""

POLAR_EXPRESS: tuple[Triple, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
"""The optimal polynomials for singular values of at least 1e-3 (Amsel et al., arXiv 2505.16932)."""

LIMIT: Triple = (1.875, -1.25, 0.375)
"""The triple that those of `POLAR_EXPRESS` converge to."""

SAFETY = 1.01
"""Factor by which rounded singular values may exceed 1 (arXiv 2505.16932, Algorithm 1)."""

LEAST_NORM = 1e-7


def triples(coefficients: Coefficients, steps: int) -> Iterator[Triple]:
    """a, b and c of every step."""
    if coefficients == "newton_schulz":
        return repeat(QUINTIC, steps)
    safe = ((a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in POLAR_EXPRESS)
    return islice(chain(safe, repeat(LIMIT)), steps)


def flops(rows: int, columns: int, steps: int) -> int:
    """The operations of `orthogonal` for one matrix: three matrix products in every step."""
    short, long = sorted((rows, columns))
    return steps * (4 * short * short * long + 2 * short**3)


def orthogonal(
    matrix: Tensor, steps: int, coefficients: Coefficients = "newton_schulz", added: bool = False
) -> Tensor:
    """Approximate U V^T of `matrix` = U S V^T.

    Args:
        matrix: (A, B), or (n, A, B) for n matrices at once, of the dtype to compute in.
        steps: The number of steps of the iteration.
        coefficients: Keller Jordan's, with which singular values end between .5 and 1.5, or those of Polar
            Express, with which they converge to 1.
        added: Whether 1e-7 is added to the norm by which the matrix is divided (NorMuon); otherwise it is the
            lower bound of the norm.

    Returns:
        The factor, in the shape and dtype of `matrix`.
    """
    # A batch of one is computed as one matrix, because batched bfloat16 products round differently.
    if len(matrix) == 1 and matrix.dim() == 3:
        return orthogonal(matrix[0], steps, coefficients, added)[None]
    norm = torch.linalg.matrix_norm(matrix, keepdim=True) * (SAFETY if coefficients == "polar_express" else 1)
    matrix = matrix / (norm + LEAST_NORM if added else norm.clamp(min=LEAST_NORM))
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT.contiguous() if tall else matrix  # products of transposed matrices are slower
    rounds = lacks_instructions(x)  # then products of float32 are several times as fast
    x = x.float() if rounds else x
    batched = matrix.dim() > 2
    product, fused = (torch.bmm, torch.baddbmm) if batched else (torch.mm, torch.addmm)
    gram = x.new_empty((*x.shape[:-1], x.shape[-2]))
    polynomial, spare = torch.empty_like(gram), torch.empty_like(x)  # overwritten in every step
    for a, b, c in triples(coefficients, steps):
        product(x, x.mT, out=gram)
        if rounds:
            _round(gram)
        fused(gram, gram, gram, beta=b, alpha=c, out=polynomial)
        if rounds:
            _round(polynomial)
        fused(x, polynomial, x, beta=a, out=spare)
        if rounds:
            _round(spare)
        x, spare = spare, x
    x = x.to(matrix.dtype)
    return x.mT if tall else x


def _round(x: Tensor) -> None:
    """Round to bfloat16 in place."""
    x.copy_(x.bfloat16())
