"""Norms, eigenvalues and dot products of the vectors of a vocabulary (nGPT, Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.diagnose.places import Place, places
from zoo.models import Model

SAMPLE = 2048
"""Of more vectors than this, so many are drawn (always the same) for the dot products: two million pairs."""


@dataclass(frozen=True)
class Embeddings:
    """What a table of vectors looks like; all tensors float64 on the CPU.

    Attributes:
        place: the table: an input embedding, a read-out, or both at once.
        norms: of the vectors, (vocab,).
        eigenvalues: of their covariance over its median eigenvalue, (d,) in decreasing order; inf where
            the median is 0, as with fewer vectors than half of their size.
        dots: of every pair of different vectors, (pairs,).
        sampled: the number of vectors the pairs were made of.
    """

    place: Place
    norms: Tensor
    eigenvalues: Tensor
    dots: Tensor
    sampled: int


@torch.no_grad()
def embeddings(model: Model) -> list[Embeddings]:
    """Every matrix with an axis "vocab", as the model computes with it; none in a model without one.

    Args:
        model: on any device, not sharded.
    """
    found = []
    for place in places(model):
        if "vocab" in place.spec.axes and len(place.spec.axes) == 2 and not place.part:
            table = place.virtual().double().cpu()
            vectors = table if place.spec.axes.index("vocab") == 0 else table.T
            chosen = sample(vectors)
            norms = torch.linalg.vector_norm(vectors, dim=1)
            found.append(Embeddings(place, norms, spectrum(vectors), dot_products(chosen), len(chosen)))
    return found


def spectrum(vectors: Tensor) -> Tensor:
    """Eigenvalues of the covariance of (n, d) vectors over their median, (d,) in decreasing order."""
    eigenvalues = torch.linalg.eigvalsh(torch.cov(vectors.T)).flip(0)
    rounding = eigenvalues[0] * torch.finfo(eigenvalues.dtype).eps * len(eigenvalues)
    eigenvalues = torch.where(eigenvalues > rounding, eigenvalues, 0.0)
    return eigenvalues / eigenvalues.quantile(0.5)


def dot_products(vectors: Tensor) -> Tensor:
    """(n, d) -> the products of all pairs, (n (n - 1) / 2,)."""
    rows, columns = torch.triu_indices(len(vectors), len(vectors), offset=1)
    return (vectors @ vectors.T)[rows, columns]


def sample(vectors: Tensor) -> Tensor:
    """All of (n, d), or `SAMPLE` of them, the same for equal n."""
    if len(vectors) <= SAMPLE:
        return vectors
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0))
    return vectors[order[:SAMPLE]]
