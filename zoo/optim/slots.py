"""What an optimizer keeps for a parameter: the slots it starts from, their precision, their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@singledispatch
def initial_slots(optimizer: Optimizer, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """The state of a parameter before its first step, by the name of the slot.

    Each class of optimizers registers its own answer (``initial_slots.register``).

    Args:
        optimizer: any optimizer whose class, or a base of it, is registered.
        parameter: plain or sharded; the slots are placed as it is.
        group: the group that it is in.

    Raises:
        TypeError: the class is not registered.
    """
    raise TypeError(f"the slots of {type(optimizer).__name__} are not known by name")


def slots_are_known(optimizer: Optimizer) -> bool:
    """Whether `initial_slots` has an answer for the class of `optimizer`."""
    return initial_slots.dispatch(type(optimizer)) is not initial_slots.dispatch(object)


def slot_dtype(parameter: Tensor) -> torch.dtype:
    """float64 for float64 parameters, otherwise float32: small steps would stall in bfloat16."""
    return torch.promote_types(parameter.dtype, torch.float32)


def batches(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Slices of consecutive items whose sizes add up to at most `limit`, or a single item."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > limit:
            yield slice(start, i)
            start, total = i, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))
