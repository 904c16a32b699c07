"""An Amos step in torch operations, on any device, plain or sharded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.kernels.foreach import Many
from zoo.optim.amos_update import Step, apply, factors, sum_of_squares
from zoo.optim.skip_flag import restored_if
from zoo.utils.sharded import local, sum_over_ranks


@dataclass(frozen=True)
class Variable:
    """A parameter with a gradient, and the data that its step needs.

    Attributes:
        parameter: plain or sharded.
        slots: its state, by name.
        dims: the dimensions that share a slot.
        maximize: whether the step goes in the direction of the gradient.
    """

    parameter: Tensor
    slots: dict[str, Tensor]
    dims: tuple[int, ...]
    maximize: bool = False

    @property
    def has_rows(self) -> bool:
        """Return whether the entries that share a slot are adjacent, as the rows of a matrix are."""
        n = self.parameter.dim()
        return self.dims == tuple(range(n - len(self.dims), n))

    @property
    def shared(self) -> int:
        """Return how many entries share a slot, over all ranks."""
        return math.prod(self.parameter.shape[d] for d in self.dims)

    def local(self, slot: str) -> Tensor:
        """Return the rows of a slot that this rank has."""
        return local(self.slots[slot])

    @property
    def theta(self) -> Tensor:
        """Return the rows of the parameter that this rank has."""
        return local(self.parameter.detach())

    @property
    def g(self) -> Tensor:
        """Return the rows of the gradient that this rank has, negated for `maximize`."""
        gradient = self.parameter.grad
        if gradient is None:
            raise ValueError("a variable without a gradient takes no step")
        return local(-gradient if self.maximize else gradient)


def eager_step(variables: Sequence[Variable], step: Step, skip: Tensor | None = None) -> None:
    """Take a step with some variables of one group.

    Args:
        variables: variables of one group.
        step: the numbers of the step.
        skip: 0-dim bool; if it is True nothing changes. None: the step is always taken.
    """
    for variable, by in zip(variables, advance(variables, step, skip), strict=True):
        m = variable.local("m") if step.momentum else None
        apply(variable.theta, variable.g, m, by, step, skip)


def advance(
    variables: Sequence[Variable], step: Step, skip: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Advance the slots of some variables of one group, all at once, because they are small and many.

    Args:
        variables: variables of one group.
        step: the numbers of the step.
        skip: 0-dim bool; if it is True nothing changes. None: the slots always advance.

    Returns:
        The factors of `amos_update.factors`, for each variable.
    """
    squares = [sum_of_squares(v.g, v.dims, step.clip_value) for v in variables]
    sum_over_ranks(squares, [v.parameter for v in variables], [v.dims for v in variables])
    for square, v in zip(squares, variables, strict=True):
        square.div_(v.shared)
    joined = torch.cat([square.reshape(-1) for square in squares])
    sizes = [square.numel() for square in squares]
    for_g, for_theta = (
        [part.view_as(square) for part, square in zip(torch.split(factor, sizes), squares, strict=True)]
        for factor in advance_joined(variables, joined, step, skip)
    )
    return list(zip(for_g, for_theta, strict=True))


def advance_joined(
    variables: Sequence[Variable],
    mean_squares: Tensor,
    step: Step,
    skip: Tensor | None = None,
    etas: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance the slots of some variables, joined in one vector.

    Args:
        variables: variables whose steps have the same numbers, except for eta if `etas` is given.
        mean_squares: M2(g)^2 of the slots of all variables, one after the other, (slots,).
        step: the numbers of the step.
        skip: 0-dim bool; if it is True nothing changes. None: the slots always advance.
        etas: the scale of every slot, (slots,); None: all slots have that of `step`.

    Returns:
        The factors of `amos_update.factors`, (slots,) each.
    """
    slots = {name: [v.local(name) for v in variables] for name in ("v", "b")}
    flat = {name: torch.cat([slot.reshape(-1) for slot in values]) for name, values in slots.items()}
    with restored_if(skip, list(flat.values())):
        by = factors(flat["v"], flat["b"], mean_squares, step, etas)
    sizes = [slot.numel() for slot in slots["v"]]
    for name, values in slots.items():
        new = [part.view_as(old) for part, old in zip(torch.split(flat[name], sizes), values, strict=True)]
        Many(values).copy_(Many(new))
    return by
