"""Constraints, which keep a property of parameters constant during training: base class and `none`."""

from __future__ import annotations

from typing import Literal

from torch import nn

from zoo.config.registry import CONSTRAINTS, Config
from zoo.optim.base import OptimizerConfig


class Constraint(Config):
    """A constraint declares, in the specs of parameters, what every optimizer step has to preserve.

    It is a setting of a run, like `freeze`: a checkpoint does not record it.
    """

    def apply(self, model: nn.Module) -> None:
        """Declare the constraint.

        Args:
            model: a model of declared parameters, reparameterised, with or without weights.

        Raises:
            ConfigError: The constraint cannot hold, or has no effect, on a parameter.
        """

    def check(self, optimizer: OptimizerConfig) -> None:
        """Refuse an optimizer that the constraint cannot be combined with.

        Raises:
            ConfigError: The constraint excludes this optimizer, or one of its settings.
        """


@CONSTRAINTS.register
class NoConstraint(Constraint):
    """Nothing is kept constant, except for what the model itself declares (nGPT's spheres)."""

    type: Literal["none"] = "none"
