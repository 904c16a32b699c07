"""An Amos step of many parameters at once, for devices where every operation costs a launch.

Parameters whose rows have one length are joined to one matrix: the entries of a row share a slot, so that a
row's mean square is its norm, and the update is two operations that broadcast a column of factors. torch has
no ``_foreach`` function that broadcasts; therefore gradients and weights are copied and joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from zoo.kernels.foreach import Many
from zoo.optim.amos_step import Variable, advance_joined
from zoo.optim.amos_update import Step, clipped
from zoo.optim.slots import batches, slot_dtype
from zoo.utils.sharded import sum_over_ranks

TOGETHER = 1 << 27
"""Number of entries that are joined. Their three temporary tensors have 512 MB each in float32; torch's AdamW
with foreach has one as large as all weights. With half as many entries, a step that may be skipped takes more
launches than AdamW's (with momentum and 0.5B parameters)."""


@dataclass(frozen=True)
class Rows:
    """A variable as a matrix whose rows share a slot each.

    Attributes:
        variable: the variable.
        theta: this rank's weights, in their own shape.
        count: number of this rank's rows.
        length: number of this rank's entries in a row; 0 if it has none.
        eta: the scale.
    """

    variable: Variable
    theta: Tensor
    count: int
    length: int
    eta: float

    @classmethod
    def of(cls, variable: Variable, eta: float) -> Rows:
        """Return the rows of a variable of scale `eta`."""
        theta, count = variable.theta, variable.local("v").numel()
        return cls(variable, theta, count, theta.numel() // max(1, count), eta)


def multi_step(variables: Sequence[tuple[Step, Variable]], skip: Tensor | None = None) -> None:
    """Take a step with variables of any groups, whose entries that share a slot are rows.

    Args:
        variables: each with the numbers of its step; variables whose numbers differ only in eta are joined.
        skip: 0-dim bool; if it is True nothing changes. None: the step is always taken.
    """
    alike: dict[tuple[Step, torch.device, torch.dtype], list[Rows]] = defaultdict(list)
    for step, variable in variables:
        rows = Rows.of(variable, step.eta)
        alike[replace(step, eta=1.0), rows.theta.device, slot_dtype(rows.theta)].append(rows)
    for (step, _, dtype), members in alike.items():
        # Sorted by what is the same on all ranks, because their sums are exchanged in this order.
        members.sort(key=lambda rows: (rows.variable.shared, rows.variable.dims))
        _step(members, step, dtype, skip)


def _step(members: list[Rows], step: Step, dtype: torch.dtype, skip: Tensor | None) -> None:
    """Take a step with variables in the same order on all ranks; `step` has all numbers but eta."""
    parts = _parts(members)
    norms = [torch.linalg.vector_norm(_gradients(part, step, dtype), dim=1) for part in parts]
    squares = torch.cat(norms).square_()
    variables, counts = [rows.variable for rows in members], [rows.count for rows in members]
    pieces = zip(torch.split(squares, counts), variables, strict=True)
    sums = [piece.view_as(v.local("v")) for piece, v in pieces]
    sum_over_ranks(sums, [v.parameter for v in variables], [v.dims for v in variables])
    squares.div_(_column([v.shared for v in variables], counts, squares))
    etas = _column([rows.eta for rows in members], counts, squares)
    by = advance_joined(variables, squares, step, skip, etas)
    heights = [sum(rows.count for rows in part) for part in parts]
    columns = (torch.split(factor.unsqueeze(1), heights) for factor in by)
    for part, for_g, for_theta in zip(parts, *columns, strict=True):
        _apply(part, for_g, for_theta, step, dtype, skip)


def _apply(
    part: list[Rows],
    for_g: Tensor,
    for_theta: Tensor,
    step: Step,
    dtype: torch.dtype,
    skip: Tensor | None,
) -> None:
    """Add `delta` to the weights of variables of equal row length."""
    thetas = [rows.theta for rows in part]
    averages = Many([] if step.momentum is None else [rows.variable.local("m") for rows in part])
    delta = _joined(thetas, part, dtype) * for_theta
    delta.addcmul_(_gradients(part, step, dtype), for_g)
    if skip is not None:
        still = _joined(averages.tensors, part, dtype) if averages.tensors else 0.0
        delta = torch.where(skip, still, delta)
    pieces = torch.split(delta.reshape(-1), [theta.numel() for theta in thetas])
    deltas = [piece.view_as(theta) for piece, theta in zip(pieces, thetas, strict=True)]
    if step.momentum is not None:
        deltas = averages.lerp_(Many(deltas), 1 - step.momentum).tensors
        if skip is not None:
            deltas = averages.scaled((~skip).to(dtype)).tensors
    Many(thetas).add_(Many(deltas))


def _parts(members: list[Rows]) -> list[list[Rows]]:
    """Lists of neighbours of equal row length, each of at most `TOGETHER` entries or of one variable."""
    parts = []
    for _, equal in groupby(members, lambda rows: rows.length):
        part = list(equal)
        parts += [part[some] for some in batches([rows.theta.numel() for rows in part], TOGETHER)]
    return parts


def _gradients(part: list[Rows], step: Step, dtype: torch.dtype) -> Tensor:
    """The clipped gradients of variables of equal row length, (rows, row length)."""
    return clipped(_joined([rows.variable.g for rows in part], part, dtype), step.clip_value)


def _joined(tensors: list[Tensor], part: list[Rows], dtype: torch.dtype) -> Tensor:
    """The rows of tensors of the variables' shapes, (rows, row length); a single tensor is not copied."""
    matrices = [t.reshape(rows.count, rows.length) for t, rows in zip(tensors, part, strict=True)]
    return (matrices[0] if len(matrices) == 1 else torch.cat(matrices)).to(dtype)


def _column(numbers: Sequence[float], counts: Sequence[int], like: Tensor) -> Tensor:
    """A column in which each number is repeated by its count; equal neighbours are written at once."""
    runs = groupby(zip(numbers, counts, strict=True), lambda pair: pair[0])
    return torch.cat([like.new_full((sum(count for _, count in run),), number) for number, run in runs])
