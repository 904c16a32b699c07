"""Norms, eigenvalues and dot products of the vectors of a vocabulary (nGPT, Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.diagnose.locations import ParameterLocation, locate_parameters
from zoo.models import Model

SAMPLE_SIZE = 2048
"""Number of vectors of a fixed random sample that represents larger tables: two million dot products."""


@dataclass(frozen=True)
class EmbeddingTable:
    """The statistics of a table of vectors; all tensors are float64 on the CPU.

    Attributes:
        location: the table, which is an input embedding, the matrix of an LM head, or both at once.
        norms: norms of the vectors, (vocab,).
        eigenvalues: eigenvalues of the covariance of the vectors over the median eigenvalue, (d,) in
            decreasing order; inf if the median is 0, as with fewer vectors than d / 2.
        dot_products: dot products of every pair of different vectors, (pairs,).
        sample_size: number of vectors from which the pairs were formed.
    """

    location: ParameterLocation
    norms: Tensor
    eigenvalues: Tensor
    dot_products: Tensor
    sample_size: int


@torch.no_grad()
def embedding_tables(model: Model) -> list[EmbeddingTable]:
    """The statistics of every matrix with an axis "vocab", in its virtual form.

    Args:
        model: a model on any device, not sharded.

    Returns:
        The statistics in the order of the modules; empty for a model without a vocabulary.
    """
    tables = []
    for location in locate_parameters(model):
        axes = location.spec.axes
        if "vocab" in axes and len(axes) == 2 and not location.added:
            matrix = location.virtual().double().cpu()
            vectors = matrix if axes.index("vocab") == 0 else matrix.T
            sample = sample_rows(vectors)
            norms, eigenvalues = torch.linalg.vector_norm(vectors, dim=1), covariance_eigenvalues(vectors)
            tables.append(EmbeddingTable(location, norms, eigenvalues, dot_products(sample), len(sample)))
    return tables


def covariance_eigenvalues(vectors: Tensor) -> Tensor:
    """Eigenvalues of the covariance of (n, d) vectors over their median, (d,) in decreasing order."""
    eigenvalues = torch.linalg.eigvalsh(torch.cov(vectors.T)).flip(0)
    rounding_error = eigenvalues[0] * torch.finfo(eigenvalues.dtype).eps * len(eigenvalues)
    eigenvalues = torch.where(eigenvalues > rounding_error, eigenvalues, 0.0)
    return eigenvalues / eigenvalues.quantile(0.5)


def dot_products(vectors: Tensor) -> Tensor:
    """(n, d) -> the dot products of all pairs of different vectors, (n (n - 1) / 2,)."""
    rows, columns = torch.triu_indices(len(vectors), len(vectors), offset=1)
    return (vectors @ vectors.T)[rows, columns]


def sample_rows(vectors: Tensor) -> Tensor:
    """All rows of (n, d), or `SAMPLE_SIZE` of them, the same for equal n."""
    if len(vectors) <= SAMPLE_SIZE:
        return vectors
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0))
    return vectors[order[:SAMPLE_SIZE]]
