"""Slots: the tensors of state that an optimizer keeps for a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import StateDict

from zoo.optim.param_group import ParamGroup


@singledispatch
def initial_slots(optimizer: Optimizer, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
    """The slots of a parameter before its first step, by their names.

    Each class of optimizers registers an implementation (``initial_slots.register``).

    Args:
        optimizer: An optimizer whose class, or a base class of it, is registered.
        parameter: A parameter, plain or sharded; its slots are on the same devices.
        group: The parameter group that contains it.

    Raises:
        TypeError: The class of the optimizer is not registered.
    """
    raise TypeError(f"the slots of {type(optimizer).__name__} are not known by name")


@initial_slots.register
def _moments(optimizer: Adam, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
    """The step count and the two moments, of Adam and of its subclass AdamW."""
    device = parameter.device if group["fused"] or group["capturable"] else None
    step = torch.zeros((), dtype=torch.float32, device=device)
    return {"step": step, **{slot: torch.zeros_like(parameter) for slot in ("exp_avg", "exp_avg_sq")}}


def slots_are_known(optimizer: Optimizer) -> bool:
    """Whether the names of all slots of `optimizer` are known before its first step.

    Adam and AdamW have another slot with `amsgrad`, and a subclass of them may have any.
    """
    if isinstance(optimizer, Adam):
        of_torch = type(optimizer) in (Adam, AdamW)
        return of_torch and not any(group["amsgrad"] for group in optimizer.param_groups)
    return initial_slots.dispatch(type(optimizer)) is not initial_slots.dispatch(object)


def slot_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of a slot: float64 for float64 parameters, otherwise float32; bfloat16 is too coarse."""
    return torch.promote_types(parameter.dtype, torch.float32)


def restore_precision(optimizer: Optimizer, loaded: StateDict, slots: Callable[[str], bool]) -> None:
    """Give slots of a loaded `state_dict` back their precision: torch casts them to the parameters' dtype.

    Args:
        optimizer: The optimizer that has loaded the `state_dict`.
        loaded: The `state_dict`, as its hooks have left it.
        slots: A function that says of the name of a slot whether it is kept in `slot_dtype`.
    """
    saved = [index for group in loaded["param_groups"] for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip(saved, parameters, strict=True):
        for slot, value in loaded["state"].get(index, {}).items():
            if slots(slot):
                optimizer.state[parameter][slot] = value.to(parameter.device, slot_dtype(parameter))


def batches(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Slices of items whose sizes add up to at most `limit`; a larger item has its own slice."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > limit:
            yield slice(start, i)
            start, total = i, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))
