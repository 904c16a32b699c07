"""An optimizer's state by the names of its parameters, independent of their order and sharding.

The state of Adam, of AdamW, and of those of zoo's optimizers whose state is the slots of parameters alone is
known before the first step: one tensor for each slot. Of any other optimizer, Prodigy and schedule-free AdamW
among them, everything that may change is kept: the state of each parameter and of other keys, the entries of
its groups, and its attributes, as far as they consist of tensors, numbers, strings, None, and lists, tuples,
dicts and deques of them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.optim.averages import Averaging
from zoo.optim.fixed_norm import RADIUS, radius_slot
from zoo.optim.param_group import ParamGroup
from zoo.optim.sharding import placed_like
from zoo.optim.slots import initial_slots, slots_are_known
from zoo.utils.errors import CheckpointError
from zoo.utils.files import parse_json
from zoo.utils.sharded import Stored, assign, is_sharded
from zoo.utils.untyped import Json

Value: TypeAlias = Any
"""What `is_data` describes, and in a saved state also a tensor in a file.

Any: it depends on the class of the optimizer, which may come from elsewhere.
"""

State = dict[str, dict[str, Value]]
"""``{parameter name: {slot: value}}``; the key `GLOBAL` has the values of no single parameter."""


class Layout(TypedDict, total=False):
    """The device and the strides of a tensor that is restored from a checkpoint."""

    device: str
    stride: tuple[int, ...]


GLOBAL = ""
STRUCTURE = "structure"
"""Metadata key of the description of all values that are not one tensor per slot."""

SCHEDULED = frozenset({"params", "param_names", "lr", "initial_lr"})
"""Entries of a group that the model and the schedule determine, and that are not saved."""

CHANGING = ("state", "groups", "attributes")
"""What a step may change: the optimizer's state, the entries of its groups, and its attributes."""


@cache
def _not_state() -> frozenset[str]:
    """Attributes of every torch optimizer and of torch's schedulers; the call imports torch's compiler."""
    return frozenset({*vars(Optimizer([torch.zeros(1, requires_grad=True)], {})), "_opt_called"})


def state_by_name(optimizer: Optimizer) -> State:
    """The state as ``{parameter name: {slot: value}}``.

    Args:
        optimizer: An optimizer whose groups know the names of their parameters.

    Returns:
        The live values, sharded where the parameters are. If the slots are known in advance, those that do
        not exist yet (before the first step, or for a momentum that was just switched on) have the values
        from which the next step would start, so that the names do not depend on the step.
    """
    if slots_are_known(optimizer):
        return {name: _slots(optimizer, parameter, group) for name, parameter, group in _named(optimizer)}
    named = {name: parameter for name, parameter, _ in _named(optimizer)}
    parts = changing(optimizer)
    state: State = {name: dict(parts["state"].pop(p)) for name, p in named.items() if p in parts["state"]}
    device = next(iter(named.values())).device
    layouts = {path: _layout(tensor, device) for path, tensor in tensors_in({**state, GLOBAL: parts})}
    state[GLOBAL] = {
        "optimizer": type(optimizer).__qualname__,
        "shapes": {name: tuple(parameter.shape) for name, parameter in named.items()},
        "layouts": {path: layout for path, layout in layouts.items() if layout},
        "weights": named if isinstance(optimizer, Averaging) else {},
        "group_names": _group_names(optimizer),
        **parts,
    }
    return state


def load_state_by_name(optimizer: Optimizer, state: Mapping[str, Mapping[str, Value]]) -> None:
    """Replace the state of `optimizer` by a copy of `state`.

    Args:
        optimizer: An optimizer of the same class for the same parameters; sharded or not.
        state: A result of `state_by_name`, with whole tensors or tensors in a file.

    Raises:
        CheckpointError: Names are missing or unexpected (the message lists them all), or shapes
            differ. The optimizer is unchanged then.
    """
    if slots_are_known(optimizer):
        _load_slots(optimizer, state)
    else:
        _load_everything(optimizer, state)


def _slots(optimizer: Optimizer, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
    """The slots of a parameter; those that do not exist yet are created."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    names = initial_slots(optimizer, torch.empty_like(parameter, device="meta"), group).keys()
    first = {} if names <= state.keys() else initial_slots(optimizer, parameter, group)
    radius = {} if RADIUS in state else radius_slot(optimizer, parameter)
    return first | radius | state


def _first_slots(optimizer: Optimizer, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
    """The slots of a parameter before its first step, including that of a constraint."""
    return initial_slots(optimizer, parameter, group) | radius_slot(optimizer, parameter)


def _load_slots(optimizer: Optimizer, state: Mapping[str, Mapping[str, Value]]) -> None:
    """Load slots that are known in advance."""
    expected = {name: (p, _first_slots(optimizer, p, group)) for name, p, group in _named(optimizer)}
    want = {f"{name}/{slot}" for name, (_, slots) in expected.items() for slot in slots}
    have = {f"{name}/{slot}" for name, slots in state.items() for slot in slots}
    _check_names(optimizer, want, have)
    for name, (_, slots) in expected.items():
        for slot, like in slots.items():
            if (shape := state[name][slot].shape) != like.shape:
                raise CheckpointError(f"{name}/{slot} has shape {tuple(shape)}, expected {tuple(like.shape)}")
    for name, (_, slots) in expected.items():
        for slot, like in slots.items():
            assign(like, state[name][slot])
    for parameter, slots in expected.values():
        optimizer.state[parameter] = slots


def _load_everything(optimizer: Optimizer, state: Mapping[str, Mapping[str, Value]]) -> None:
    """Load the saved state of an optimizer whose slots are not known in advance."""
    saved = dict(state.get(GLOBAL, {}))
    kind = type(optimizer).__qualname__
    if saved.get("optimizer") != kind:
        raise CheckpointError(f"the state is that of '{saved.get('optimizer')}', expected that of '{kind}'")
    named = {name: parameter for name, parameter, _ in _named(optimizer)}
    _check_names(optimizer, named.keys(), saved["shapes"].keys())
    for name, parameter in named.items():
        if (shape := tuple(saved["shapes"][name])) != tuple(parameter.shape):
            raise CheckpointError(f"{name} had shape {shape}, expected {tuple(parameter.shape)}")
    order = _group_order(optimizer, saved)
    layouts = saved["layouts"]

    def placed(value: Value, path: str, parameter: Tensor) -> Value:
        return mapped(value, lambda tensor, at: _placed(tensor, parameter, **layouts.get(at, {})), path)

    some = next(iter(named.values()))
    states = {p: placed(state[name], f"/{name}", p) for name, p in named.items() if name in state}
    rest = {part: placed(saved[part], f"/{GLOBAL}/{part}", some) for part in CHANGING}
    rest["groups"] = [rest["groups"][i] for i in order]
    restore(optimizer, {**rest, "state": {**states, **rest["state"]}})
    with torch.no_grad():
        for name, value in saved["weights"].items():
            named[name].copy_(placed(value, "", named[name]))


def _group_names(optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters of each group, in an order that does not depend on that of the model."""
    return [sorted(group["param_names"]) for group in optimizer.param_groups]


def _group_order(optimizer: Optimizer, saved: Mapping[str, Value]) -> list[int]:
    """The number of each group of the optimizer in a saved state, found by the names of its parameters.

    Raises:
        CheckpointError: The groups divide the parameters in another way.
    """
    names = _group_names(optimizer)
    # A state that zoo 0.2 saved does not name the parameters of a group.
    saved_names = saved.get("group_names", names)
    if len(saved["groups"]) != len(names):
        raise CheckpointError(f"the state has {len(saved['groups'])} parameter groups, expected {len(names)}")
    if sorted(saved_names) != sorted(names):
        other = next(group for group in saved_names if group not in names)
        raise CheckpointError(
            f"the state has a parameter group of {', '.join(other)}; expected the groups that this "
            f"{type(optimizer).__name__} has, because their settings differ"
        )
    return [saved_names.index(group) for group in names]


def flatten(state: Mapping[str, Mapping[str, Value]]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A state as named tensors and the metadata of their file.

    Args:
        state: A result of `state_by_name`.

    Returns:
        Tensors, named ``parameter/slot`` where a slot is a tensor; metadata, empty if all slots are tensors.

    Raises:
        CheckpointError: A value is of a kind that cannot be saved.
    """
    tensors: dict[str, Tensor] = {}
    structure: dict[str, list[Json]] = {}
    for name, slots in state.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor) and isinstance(slot, str) and "/" not in slot:
                tensors[f"{name}/{slot}"] = value
            else:
                key, kept = _encoded(slot, name, tensors), _encoded(value, f"{name}/{slot}", tensors)
                structure.setdefault(name, []).append([key, kept])
    return tensors, {STRUCTURE: json.dumps(structure)} if structure else {}


def unflatten(tensors: Mapping[str, Tensor | Stored], metadata: Mapping[str, str]) -> State:
    """The inverse of `flatten`.

    Raises:
        CheckpointError: The tensors are not those of an optimizer's state.
    """
    structure = parse_json(metadata.get(STRUCTURE, "{}"), STRUCTURE, CheckpointError)
    left = dict(tensors)
    try:
        state = {
            name: {_decoded(slot, left): _decoded(value, left) for slot, value in slots}
            for name, slots in structure.items()
        }
        for key, tensor in left.items():
            name, slot = key.rsplit("/", 1)
            state.setdefault(name, {})[slot] = tensor
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"not the state of an optimizer: {error}") from error
    return state


def snapshot(optimizer: Optimizer) -> dict[str, Value]:
    """A copy of everything but the parameters that a step of `optimizer` may change, for `restore`."""

    def copied(value: Value) -> Value:
        return mapped(value, lambda tensor, _: tensor.detach().clone())

    parts = changing(optimizer)
    state = {key: copied(slots) for key, slots in parts.pop("state").items()}
    return {**copied(parts), "state": state}


def restore(optimizer: Optimizer, saved: Mapping[str, Value]) -> None:
    """Restore a `snapshot`, whose tensors become the optimizer's."""
    optimizer.state.clear()
    optimizer.state.update(saved["state"])
    for group, entries in zip(optimizer.param_groups, saved["groups"], strict=True):
        for key in group.keys() - entries.keys() - SCHEDULED:
            if is_data(group[key]):
                del group[key]
        group.update(entries)
    vars(optimizer).update(saved["attributes"])


def mapped(value: Value, function: Callable[[Value, str], Value], path: str = "") -> Value:
    """A copy of nested containers in which ``function(tensor, path)`` replaces every tensor."""
    if isinstance(value, Tensor | Stored):
        return function(value, path)
    if isinstance(value, dict):
        return {key: mapped(item, function, f"{path}/{key}") for key, item in value.items()}
    if type(value) in (list, tuple, deque):
        items = [mapped(item, function, f"{path}/{i}") for i, item in enumerate(value)]
        return deque(items, value.maxlen) if isinstance(value, deque) else type(value)(items)
    return value


def tensors_in(value: Value, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested containers, each with its path."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}/{key}")
    elif type(value) in (list, tuple, deque):
        for i, item in enumerate(value):
            yield from tensors_in(item, f"{path}/{i}")


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """The bytes of an optimizer's state; of a sharded one, those of all ranks together."""
    slots = (slot for _, slot in tensors_in(list(optimizer.state.values())))
    return sum(slot.numel() * slot.element_size() for slot in slots)


def is_data(value: Value) -> bool:
    """Whether `flatten` can save a value; it does not save parameters, which belong to the model."""
    if isinstance(value, dict):
        return type(value) is dict and all(is_data(part) for item in value.items() for part in item)
    if type(value) in (list, tuple, deque):
        return all(map(is_data, value))
    return not isinstance(value, nn.Parameter) and (
        value is None or isinstance(value, bool | int | float | str | torch.dtype | Tensor)
    )


def changing(optimizer: Optimizer) -> dict[str, Value]:
    """Collect what a step may change, without copies: state by parameter or other key, groups, attributes.

    Constants that cannot be saved, such as a function among the settings, are left out.
    """
    groups = [
        {
            key: value
            for key, value in group.items()
            if key not in SCHEDULED and (is_data(value) or value is not optimizer.defaults.get(key))
        }
        for group in optimizer.param_groups
    ]
    attributes = {k: v for k, v in vars(optimizer).items() if k not in _not_state() and is_data(v)}
    return {"state": dict(optimizer.state), "groups": groups, "attributes": attributes}


def _encoded(value: Value, path: str, tensors: dict[str, Tensor]) -> Json:
    """A value as JSON; its tensors are added to `tensors` under their paths."""
    if isinstance(value, Tensor):
        while path in tensors:  # for instance for keys 1 and "1" of a dict
            path += "_"
        tensors[path] = value
        return {"tensor": path}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).rpartition(".")[2]}
    if type(value) in (list, tuple, deque):
        items = [_encoded(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        if isinstance(value, deque):
            return {"deque": items, "maxlen": value.maxlen}
        return items if isinstance(value, list) else {"tuple": items}
    if type(value) is dict:
        pairs = value.items()
        return {"dict": [[_encoded(k, path, tensors), _encoded(v, f"{path}/{k}", tensors)] for k, v in pairs]}
    raise CheckpointError(f"{path} is a {type(value).__name__}, which cannot be saved")


def _decoded(value: Json, tensors: dict[str, Tensor | Stored]) -> Value:
    """The inverse of `_encoded`; removes the tensors from `tensors`."""
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors.pop(value["tensor"])
    if "dtype" in value:
        return getattr(torch, value["dtype"])
    if "dict" in value:
        return {_decoded(key, tensors): _decoded(item, tensors) for key, item in value["dict"]}
    items = _decoded(value.get("tuple", value.get("deque")), tensors)
    return tuple(items) if "tuple" in value else deque(items, value["maxlen"])


def _layout(tensor: Tensor, device: torch.device) -> Layout:
    """What distinguishes a tensor from a contiguous one on `device`."""
    layout: Layout = {}
    if tensor.device.type != device.type:
        layout["device"] = tensor.device.type
    if not is_sharded(tensor) and not tensor.is_contiguous() and 0 not in tensor.stride():
        layout["stride"] = tensor.stride()
    return layout


def _placed(
    tensor: Tensor | Stored,
    parameter: Tensor,
    device: str | None = None,
    stride: tuple[int, ...] | None = None,
) -> Tensor:
    """A copy of `tensor` on the device of `parameter`, sharded like it if the shapes are equal.

    The strides matter for bitwise equality, because the rounding of matrix products depends on them.
    """
    if is_sharded(parameter) and tensor.shape == parameter.shape:
        return placed_like(tensor, torch.empty_like(parameter, dtype=tensor.dtype))
    target = torch.device(device) if device else parameter.device
    placed = torch.empty(tensor.shape, dtype=tensor.dtype, device=target)
    if stride is not None:
        placed = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=target)
    assign(placed, tensor)
    return placed


def _check_names(optimizer: Optimizer, want: AbstractSet[str], have: AbstractSet[str]) -> None:
    problems = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (("missing", want - have), ("unexpected", have - want))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"the state is not that of this {type(optimizer).__name__}: {'; '.join(problems)}"
        )


def _named(optimizer: Optimizer) -> Iterator[tuple[str, Tensor, ParamGroup]]:
    """Name, parameter and group of everything the optimizer trains.

    Raises:
        CheckpointError: The groups do not know the names of their parameters.
    """
    for group in optimizer.param_groups:
        if "param_names" not in group:
            raise CheckpointError(
                f"the {type(optimizer).__name__} does not know the names of its parameters; build it from "
                "`model.named_parameters()`"
            )
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            yield name, parameter, group
