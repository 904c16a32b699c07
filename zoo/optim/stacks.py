"""Stacks of weights and slots (`zoo.kernels.stacks`) that a step changes, unless it is skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from zoo.kernels.stacks import copy_back, stack
from zoo.optim.skip_flag import restored_if


@contextmanager
def changed(skip: Tensor | None, *columns: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Within a `with` block, stacks of tensors whose changes are made to the tensors themselves.

    Args:
        skip: 0-dim bool of `zoo.optim.skip_flag.skip_flag`, True if nothing is to be changed; None: the step
            is taken.
        *columns: lists of plain tensors without gradient; those of one list have one shape.

    Yields:
        The stack of each column, which the block changes in place.
    """
    stacks = [stack(column) for column in columns]
    with restored_if(skip, stacks):
        yield stacks
    copy_back(stacks, columns)
