"""What zoo's own optimizers have in common: steps with a closure, and slots that are known in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.optim.slots import initial_slots


class OwnOptimizer(Optimizer):
    """A torch optimizer; a subclass says what it keeps and how it moves the parameters."""

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step: zeros, placed as the parameter is."""
        raise NotImplementedError

    def update(self) -> None:
        """Move every parameter that has a gradient, without recording it."""
        raise NotImplementedError

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: evaluates the model again and returns the loss.

        Returns:
            The loss, if there is a closure.

        Raises:
            RuntimeError: a gradient of a kind that the optimizer cannot use, such as a sparse one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update()
        return loss


@initial_slots.register
def _own(optimizer: OwnOptimizer, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    return optimizer.slots(parameter, group)
