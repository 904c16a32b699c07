"""Several optimizers, each for a part of the parameters, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from zoo.optim.optimizer import ZooOptimizer, check_group_sizes
from zoo.optim.param_group import ParamGroup
from zoo.optim.skip import skipped_if
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import initial_slots
from zoo.utils.errors import ConfigError


class Combined(ZooOptimizer):
    """Optimizers of disjoint sets of parameters that take their steps together.

    The groups and the state are those of the parts, so that schedules, checkpoints and ``state_dict`` see
    a single optimizer.

    Attributes:
        parts: The optimizers, in the order of their groups.
    """

    handles_skip: ClassVar[bool] = True

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        """Combine optimizers that have not taken a step yet.

        Args:
            parts: Optimizers of disjoint sets of parameters. Either all know the names of their parameters
                or none does.
        """
        self.parts = tuple(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group of a part, which the constructor does.

        Raises:
            ConfigError: The group belongs to no part, so that nothing would train it.
        """
        if not any(group is param_group for part in self.parts for group in part.param_groups):
            parts = " and ".join(type(part).__name__ for part in self.parts)
            raise ConfigError(
                f"add_param_group: an optimizer of the parts {parts} cannot tell which of them is to train "
                "the group; expected all parameters when it is built"
            )
        super().add_param_group(param_group)

    def _share(self) -> None:
        """Make this optimizer share the groups and the state of its parts."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """The slots of the parameter in the part that trains it."""
        part = next(p for p in self.parts if any(g is group for g in p.param_groups))
        return initial_slots(part, parameter, group)

    def update(self) -> None:
        """Take one step with each part."""
        for part in self.parts:
            with skipped_if(part, skip_flag(self)):
                part.step()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore a `state_dict`: each part loads and checks its share, between the hooks of torch.

        Raises:
            CheckpointError: The groups are not those of this optimizer. As with any error of a part, the
                optimizer is unchanged then.
        """
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = before(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        self._load(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load(self, state_dict: StateDict) -> None:
        check_group_sizes(state_dict["param_groups"], self.param_groups)
        groups = iter(state_dict["param_groups"])
        try:
            for part in self.parts:
                share = [next(groups) for _ in part.param_groups]
                indices = {i for group in share for i in group["params"]}
                slots = {i: slots for i, slots in state_dict["state"].items() if i in indices}
                part.load_state_dict({"state": slots, "param_groups": share})
            self.state = defaultdict(dict, {p: s for part in self.parts for p, s in part.state.items()})
            self.param_groups = [group for part in self.parts for group in part.param_groups]
        finally:  # where a part refuses, those before it get back what they had
            self._share()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "parts": self.parts}
