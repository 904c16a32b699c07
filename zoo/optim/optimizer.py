"""The base classes of the optimizers that zoo implements itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, ItemsView, Mapping, Sequence
from typing import ClassVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from zoo.kernels.foreach import Many
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import Valid, check_ranges
from zoo.optim.sharding import reduced_like
from zoo.optim.slots import initial_slots, restore_precision, slot_dtype
from zoo.utils.errors import CheckpointError, ConfigError
from zoo.utils.sharded import local


class SteppingOptimizer(Optimizer):
    """A torch optimizer whose subclasses define the update of all parameters.

    Attributes:
        valid: The valid values of a group's options.
    """

    valid: ClassVar[Mapping[str, Valid]] = {}

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group, which the constructor does for each.

        Raises:
            ConfigError: The group is not valid. It is not added then.
        """
        place = self.next_place
        super().add_param_group(param_group)
        try:
            self.check(self.param_groups[-1], place)
        except ConfigError:
            self.param_groups.pop()
            raise

    @property
    def next_place(self) -> str:
        """The name in messages of the group that is added next."""
        return f"{type(self).__name__}: parameter group {len(self.param_groups)}"

    def check(self, group: ParamGroup, place: str) -> None:
        """Check a complete group.

        Args:
            group: The group, with the defaults.
            place: Its name in messages.

        Raises:
            ConfigError: The group is not valid.
        """
        check_ranges(group, self.valid, place)

    def update(self) -> None:
        """Update every parameter that has a gradient; called with gradients disabled."""
        raise NotImplementedError

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: A function that evaluates the model again and returns the loss.

        Returns:
            The loss that the closure returned; None without a closure.

        Raises:
            RuntimeError: The optimizer cannot use a gradient, for instance because it is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update()
        return loss

    def held(self, parameters: Sequence[Tensor], slot: str) -> list[Tensor]:
        """This rank's rows of a slot of each parameter."""
        return [local(self.state[parameter][slot]) for parameter in parameters]

    def accepted(self, state_dict: StateDict) -> StateDict:
        """The `state_dict` to load, as hooks have left it; a subclass may check it and complete it."""
        return state_dict

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore a `state_dict`; slots keep their precision, whatever the dtype of the parameters is."""
        loaded = state_dict

        def keep(_: Optimizer, of_hooks: StateDict) -> StateDict:
            nonlocal loaded
            loaded = self.accepted(of_hooks)
            return loaded

        handle = self.register_load_state_dict_pre_hook(keep)  # behind all others, which may replace it
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        restore_precision(self, loaded, lambda slot: slot != "step")


class ZooOptimizer(SteppingOptimizer):
    """An optimizer whose subclasses define the slots of a parameter as well.

    The slots are known before the first step, so that checkpoints can be checked and memory be computed.
    """

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """The state of a parameter before its first step: zeros, on its device and sharded as it is."""
        raise NotImplementedError

    def state_of(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """The state of a parameter, which starts from its `slots`."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update(self.slots(parameter, group))
        return state

    def counted(self, parameters: Sequence[Tensor], group: ParamGroup) -> list[int]:
        """Count a step of each of some parameters of a group, in its slot ``step``.

        Returns:
            The number of the step of each, from 1; a parameter that had no gradient for some steps has a
            lower number than the others.
        """
        steps = [self.state_of(parameter, group)["step"] for parameter in parameters]
        if steps:
            Many(steps).add_(1)
        return [int(step.item()) for step in steps]


class CountingOptimizer(ZooOptimizer):
    """An optimizer that keeps running averages, and counts the steps of every parameter."""

    def averages(self, parameter: Tensor) -> Sequence[str]:
        """The names of the slots of a parameter that have its shape."""
        raise NotImplementedError

    def move(self, parameters: Sequence[Tensor], t: int, group: ParamGroup) -> None:
        """Take step `t`, from 1, with parameters of a group that have a gradient."""
        raise NotImplementedError

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """The number of steps, and an average for each of the names."""
        dtype = slot_dtype(parameter)
        averages = {slot: reduced_like(parameter, (), dtype) for slot in self.averages(parameter)}
        return {"step": torch.zeros((), dtype=torch.float32), **averages}

    def update(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for t, parameters in self._by_step(group):
                self.move(parameters, t, group)

    def _by_step(self, group: ParamGroup) -> ItemsView[int, list[Tensor]]:
        """Pairs of the number of a step, from 1, and the parameters of a group that take it now."""
        at: dict[int, list[Tensor]] = defaultdict(list)
        parameters = due(group)
        for parameter, t in zip(parameters, self.counted(parameters, group), strict=True):
            at[t].append(parameter)
        return at.items()


def local_rows(parameters: Sequence[Tensor]) -> list[Tensor]:
    """This rank's rows of each parameter."""
    return [local(parameter.detach()) for parameter in parameters]


def gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """This rank's rows of each parameter's gradient, which must exist, in the gradient's precision."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def due(group: ParamGroup) -> list[Tensor]:
    """The parameters of a group that have a gradient.

    Raises:
        RuntimeError: A gradient is sparse.
    """
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    if any(parameter.grad.is_sparse for parameter in parameters):
        raise RuntimeError(
            "zoo's optimizers need dense gradients, and one is sparse: build the embedding with sparse=False"
        )
    return parameters


def check_group_sizes(saved: Sequence[ParamGroup], expected: Sequence[ParamGroup]) -> None:
    """Check that the groups of a checkpoint have as many parameters as those of an optimizer.

    Raises:
        CheckpointError: The numbers differ.
    """
    theirs, ours = ([len(group["params"]) for group in groups] for groups in (saved, expected))
    if theirs != ours:
        raise CheckpointError(f"the groups of the checkpoint have {theirs} parameters, expected {ours}")


@initial_slots.register
def _slots(optimizer: ZooOptimizer, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
    return optimizer.slots(parameter, group)
