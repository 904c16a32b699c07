"""The matrices that a parameter consists of: which dimensions are rows, and which are split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from zoo.optim.param_group import ParamGroup
from zoo.spec import OUTPUT_AXES, ParamSpec, Role

OUTER_AXES = OUTPUT_AXES | {"image"}
"""Axes of a model's inputs and outputs; a kernel with one of them is no hidden matrix."""


def is_hidden(spec: ParamSpec) -> bool:
    """Whether a parameter is a hidden matrix: a kernel without an axis of the model's inputs or outputs."""
    return spec.role in (Role.LINEAR, Role.CONV) and not OUTER_AXES & set(spec.axes)


@dataclass(frozen=True)
class MatrixLayout:
    """The matrices that a parameter consists of.

    Attributes:
        rows: the dimensions that count rows; all others count columns.
        parts: number of parts of each dimension; each part belongs to a matrix of its own.
    """

    rows: tuple[int, ...] = (0,)
    parts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, spec: ParamSpec, heads: bool) -> MatrixLayout:
        """The layout of a declared parameter.

        Args:
            spec: the declaration.
            heads: whether every head is a matrix of its own. Every expert is one in any case.
        """
        rows = tuple(d for d, axis in enumerate(spec.axes) if axis not in spec.fan_in)
        counts = [(spec.axes.index(axis), count) for axis, count in spec.parts]
        chosen = [(d, count) for d, count in counts if count > 1 and (heads or count == spec.shape[d])]
        return cls(rows, tuple(chosen))

    @property
    def of_rows(self) -> MatrixLayout:
        """The layout without the parts that divide columns."""
        return MatrixLayout(self.rows, tuple((d, count) for d, count in self.parts if d in self.rows))

    def split(self, tensor: Tensor) -> Tensor:
        """The matrices of a parameter, (matrices, A, B)."""
        counts, order = self._axes(tensor.dim())
        shape = _divided(tensor.shape, counts)
        rows = math.prod(shape[2 * d + 1] for d in self.rows)
        columns = math.prod(shape[2 * d + 1] for d in range(tensor.dim()) if d not in self.rows)
        return tensor.reshape(shape).permute(order).reshape(math.prod(counts.values()), rows, columns)

    def shape_of(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """The number of matrices in a parameter of the given shape, and the rows and columns of each."""
        return _shape_of(self, tuple(shape))

    def stacked(self, count: int) -> MatrixLayout:
        """The layout of a stack of parameters with this layout, along a new first dimension."""
        rows, parts = (d + 1 for d in self.rows), ((d + 1, n) for d, n in self.parts)
        return MatrixLayout(tuple(rows), ((0, count), *parts))

    def join(self, matrices: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The inverse of `split`, for a parameter of the given shape."""
        counts, order = self._axes(len(shape))
        split = _divided(shape, counts)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return matrices.reshape([split[d] for d in order]).permute(inverse).reshape(shape)

    def _axes(self, dims: int) -> tuple[dict[int, int], list[int]]:
        """The number of parts by dimension, and the order of the axes: parts, then rows, then columns."""
        columns = [d for d in range(dims) if d not in self.rows]
        inner = [2 * d + 1 for d in (*self.rows, *columns)]
        return dict(self.parts), [*range(0, 2 * dims, 2), *inner]


@cache  # asked for every matrix in every step
def _shape_of(layout: MatrixLayout, shape: tuple[int, ...]) -> tuple[int, int, int]:
    count, rows, columns = layout.split(torch.empty(shape, device="meta")).shape
    return count, rows, columns


def _divided(shape: Sequence[int], counts: Mapping[int, int]) -> list[int]:
    """The shape in which every split dimension becomes two: the number of parts, and the size of one."""
    return [n for d, size in enumerate(shape) for n in (counts.get(d, 1), size // counts.get(d, 1))]


def plain(layout: MatrixLayout) -> ParamGroup:
    """The entries of a parameter group that describe a layout: tuples of numbers."""
    return {"rows": layout.rows, "parts": layout.parts}


def layout_of(group: ParamGroup) -> MatrixLayout:
    """The layout that the entries of a parameter group describe."""
    return MatrixLayout(group["rows"], group["parts"])


MATRIX = MatrixLayout()
"""A single matrix, whose first dimension counts its rows."""
