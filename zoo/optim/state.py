"""An optimizer's state by the names of its parameters, which survives another order or sharding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from zoo.optim.sharding import placed_like
from zoo.optim.slots import initial_slots
from zoo.utils.errors import CheckpointError


def state_by_name(optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """The state as ``{parameter name: {slot: tensor}}``.

    Args:
        optimizer: an optimizer that a zoo config built, so that its groups know names.

    Returns:
        The live tensors, sharded where the parameters are. A parameter that has not been updated
        yet has the slots it would start from, so that the names do not depend on the step.
    """
    return {
        name: dict(optimizer.state[p]) or initial_slots(optimizer, p, g) for name, p, g in _named(optimizer)
    }


def load_state_by_name(optimizer: Optimizer, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Put `state` in the place of the optimizer's.

    Args:
        optimizer: an optimizer that a zoo config built for the same parameters; sharded or not.
        state: whole tensors, as from `state_by_name`; they are copied.

    Raises:
        CheckpointError: names that are missing or unexpected, all of them, or other shapes. The
            optimizer is then as it was.
    """
    expected = {name: (p, initial_slots(optimizer, p, group)) for name, p, group in _named(optimizer)}
    want = {f"{name}/{slot}" for name, (_, slots) in expected.items() for slot in slots}
    have = {f"{name}/{slot}" for name, slots in state.items() for slot in slots}
    problems = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (("missing", want - have), ("unexpected", have - want))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"the state is not that of this {type(optimizer).__name__}: {'; '.join(problems)}"
        )
    for name, (_, slots) in expected.items():
        for slot, like in slots.items():
            if (found := state[name][slot].shape) != like.shape:
                raise CheckpointError(f"{name}/{slot} has shape {tuple(found)}, expected {tuple(like.shape)}")
    for name, (parameter, slots) in expected.items():
        optimizer.state[parameter] = {
            slot: placed_like(state[name][slot], like) for slot, like in slots.items()
        }


def _named(optimizer: Optimizer) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Name, parameter and group of everything the optimizer trains."""
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            yield name, parameter, group
