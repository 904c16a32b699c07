"""Several optimizers as one: each has parameters of its own, all have one state and one schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from zoo.optim.own import OwnOptimizer
from zoo.optim.slots import initial_slots


class Combined(OwnOptimizer):
    """Optimizers of different parameters, stepped together.

    Its groups are the groups of the parts and its state is theirs, so that schedules, checkpoints
    and ``state_dict`` see a single optimizer.

    Attributes:
        parts: the optimizers, in the order of the groups.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        """Join optimizers that have not taken a step yet.

        Args:
            parts: optimizers of different parameters, all with names or all without.
        """
        self.parts = tuple(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts work on this optimizer's groups and state."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Those of the part that has the parameter."""
        part = next(p for p in self.parts if any(g is group for g in p.param_groups))
        return initial_slots(part, parameter, group)

    def update(self) -> None:
        """One step of each part."""
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`, each part its own, with its own checks."""
        saved = iter(state_dict["param_groups"])
        for part in self.parts:
            groups = [next(saved) for _ in part.param_groups]
            own = {i for group in groups for i in group["params"]}
            slots = {i: slots for i, slots in state_dict["state"].items() if i in own}
            part.load_state_dict({"state": slots, "param_groups": groups})
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = defaultdict(dict, {p: s for part in self.parts for p, s in part.state.items()})
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}
