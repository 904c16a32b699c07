"""Condition numbers of the matrices of each layer, head by head (nGPT, Figures 5 and 10 to 12).

A condition number is the ratio of the largest to the smallest singular value. The paper takes the
median over the heads of an attention matrix, and also renormalises: every vector of length d gets
unit norm first, as nGPT keeps it, so that what is left is not due to the vectors' norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.diagnose.places import Place, places
from zoo.models import Model
from zoo.nn.attention import Attention
from zoo.spec import ParamSpec, Role

HEADS = ("heads", "kv_heads")
"""The axes along which an attention matrix is divided into heads."""


@dataclass(frozen=True)
class Conditioning:
    """The spectrum of one matrix; all tensors float64 on the CPU.

    Attributes:
        place: the matrix.
        singular: (heads, n) in decreasing order; one row for a matrix without heads.
        renormalised: the same after every vector was given unit norm.
        norms: of the vectors, (number,).
    """

    place: Place
    singular: Tensor
    renormalised: Tensor
    norms: Tensor

    @property
    def numbers(self) -> Tensor:
        """The condition number of each head, (heads,); inf for a matrix of lower rank, nan for zeros."""
        return condition(self.singular)

    @property
    def renormalised_numbers(self) -> Tensor:
        """The same after renormalising."""
        return condition(self.renormalised)


@torch.no_grad()
def conditioning(model: Model) -> list[Conditioning]:
    """The spectra of a model's linear and convolution kernels, as their layers compute with them.

    A read-out (an axis "vocab") is left to `zoo.diagnose.embeddings`. The singular values take
    O(rows columns^2) in float64: seconds for a hundred million parameters.

    Args:
        model: on any device, not sharded.

    Returns:
        In the order of the modules.
    """
    sizes = {
        matrix: attention.head_size
        for attention in model.modules()
        if isinstance(attention, Attention)
        for matrix in attention.modules()
    }
    found = []
    for place in places(model):
        spec = place.spec
        if spec.role not in (Role.LINEAR, Role.CONV) or place.part or "vocab" in spec.axes:
            continue
        weight = place.virtual().double().cpu().reshape(spec.shape[0], -1)
        dim = vectors_dim(spec)
        axis, size = head_axis(spec), sizes.get(place.owner)
        renormalised = F.normalize(weight, dim=dim)
        found.append(
            Conditioning(
                place,
                spectra(weight, axis, size),
                spectra(renormalised, axis, size),
                torch.linalg.vector_norm(weight, dim=dim),
            )
        )
    return found


def vectors_dim(spec: ParamSpec) -> int:
    """The dimension along which nGPT would normalise: the stream's, or else what is summed over.

    Args:
        spec: of a matrix, whose dimensions after the first are taken as one.
    """
    return spec.axes.index("embed") if "embed" in spec.axes and len(spec.axes) == 2 else 1


def head_axis(spec: ParamSpec) -> int | None:
    """The dimension that holds the heads one after the other, or None."""
    return next((i for i, axis in enumerate(spec.axes) if axis in HEADS), None)


def spectra(matrix: Tensor, axis: int | None, head_size: int | None) -> Tensor:
    """Singular values of each head's part of a matrix.

    Args:
        matrix: (rows, columns).
        axis: the dimension that holds heads, or None.
        head_size: entries of a head, or None.

    Returns:
        (heads, n), or (1, n) without heads.
    """
    parts = [matrix] if axis is None or head_size is None else torch.split(matrix, head_size, axis)
    singular: Tensor = torch.linalg.svdvals(torch.stack(list(parts)))
    return singular


def condition(singular: Tensor) -> Tensor:
    """(..., n) singular values in decreasing order -> the condition numbers (...)."""
    return singular[..., 0] / singular[..., -1]
