"""Singular values and condition numbers of the matrices of each layer (nGPT, Figures 5 and 10 to 12).

A condition number is the ratio of the largest to the smallest singular value. The paper takes the
median over the heads of an attention matrix, and also renormalises: every vector of length d gets
unit norm first, as in nGPT, so that the result does not depend on the vectors' norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.diagnose.locations import ParameterLocation, locate_parameters
from zoo.models import Model
from zoo.nn.attention import MultiHeadAttention
from zoo.spec import ParamSpec, Role

HEAD_AXES = ("heads", "kv_heads")
"""The axes along which an attention matrix is divided into heads."""


@dataclass(frozen=True)
class MatrixSpectrum:
    """The singular values of one matrix; all tensors are float64 on the CPU.

    Attributes:
        location: the matrix.
        singular_values: (heads, n) in decreasing order; one row for a matrix without heads.
        renormalised: the singular values after every vector was given unit norm, in the same shape.
        vector_norms: the norms of the vectors, (number of vectors,).
    """

    location: ParameterLocation
    singular_values: Tensor
    renormalised: Tensor
    vector_norms: Tensor

    @property
    def has_heads(self) -> bool:
        """Whether the matrix belongs to an attention."""
        return head_axis(self.location.spec) is not None

    @property
    def condition_numbers(self) -> Tensor:
        """The condition number of each head, (heads,); inf for a matrix of lower rank, nan for zeros."""
        return condition_numbers(self.singular_values)

    @property
    def renormalised_condition_numbers(self) -> Tensor:
        """The condition number of each head's renormalised matrix, (heads,)."""
        return condition_numbers(self.renormalised)


@torch.no_grad()
def matrix_spectra(model: Model) -> list[MatrixSpectrum]:
    """The spectra of a model's linear and convolution kernels, as their layers compute with them.

    `zoo.diagnose.embeddings` measures matrices with an axis "vocab". The singular values take O(rows
    columns^2) operations in float64: seconds for a hundred million parameters.

    Args:
        model: a model on any device, not sharded.

    Returns:
        The spectra in the order of the modules.
    """
    head_sizes = {
        matrix: attention.head_size
        for attention in model.modules()
        if isinstance(attention, MultiHeadAttention)
        for matrix in attention.modules()
    }
    spectra = []
    for location in locate_parameters(model):
        spec = location.spec
        if spec.role not in (Role.LINEAR, Role.CONV) or location.added or "vocab" in spec.axes:
            continue
        weight = location.virtual().double().cpu().reshape(spec.shape[0], -1)
        dim = vector_dim(spec)
        axis, head_size = head_axis(spec), head_sizes.get(location.module)
        spectra.append(
            MatrixSpectrum(
                location,
                singular_values(weight, axis, head_size),
                singular_values(F.normalize(weight, dim=dim), axis, head_size),
                torch.linalg.vector_norm(weight, dim=dim),
            )
        )
    return spectra


def vector_dim(spec: ParamSpec) -> int:
    """The dimension along which nGPT would normalise: that of the residual stream, or else of the inputs.

    Args:
        spec: the declaration of a matrix; the dimensions after the first count as one.
    """
    return spec.axes.index("embed") if "embed" in spec.axes and len(spec.axes) == 2 else 1


def head_axis(spec: ParamSpec) -> int | None:
    """The dimension along which the heads are concatenated, or None."""
    return next((i for i, axis in enumerate(spec.axes) if axis in HEAD_AXES), None)


def singular_values(matrix: Tensor, axis: int | None, head_size: int | None) -> Tensor:
    """Singular values of each head's part of a matrix.

    Args:
        matrix: (rows, columns).
        axis: the dimension along which heads are concatenated, or None.
        head_size: entries of a head, or None.

    Returns:
        (heads, n) in decreasing order, or (1, n) without heads; 0 where only the rounding of the
        decomposition is left.
    """
    parts = [matrix] if axis is None or head_size is None else torch.split(matrix, head_size, axis)
    stack = torch.stack(list(parts))
    singular: Tensor = torch.linalg.svdvals(stack)
    rounding_error = singular[..., :1] * torch.finfo(singular.dtype).eps * max(stack.shape[1:])
    return torch.where(singular > rounding_error, singular, 0.0)


def condition_numbers(singular: Tensor) -> Tensor:
    """(..., n) singular values in decreasing order -> the condition numbers (...)."""
    return singular[..., 0] / singular[..., -1]
