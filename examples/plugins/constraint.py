"""A constraint: the read-out keeps its norm, so that only the hidden states can make the logits larger."""

from dataclasses import replace
from typing import Literal

from torch import nn

from zoo import CONSTRAINTS, Constraint, OptimizerConfig, Role, ZooError
from zoo.spec import WHOLE, declared


@CONSTRAINTS.register
class FixedReadout(Constraint):
    """The matrix of the logits keeps its norm; every step turns it by about lr."""

    type: Literal["fixed-readout"] = "fixed-readout"

    def apply(self, model: nn.Module) -> None:
        """Declare that the kernel with an axis of the vocabulary keeps its norm as one vector."""
        readouts = [p for p in declared(model) if p.spec.role is Role.LINEAR and "vocab" in p.spec.axes]
        if not readouts:
            raise ZooError("constraint: fixed-readout: the model has no read-out of its own, it may be tied")
        for p in readouts:
            p.module.specs[p.local] = replace(p.spec, sphere=WHOLE)

    def check(self, optimizer: OptimizerConfig) -> None:
        """Refuse optimizers whose step must not be rescaled."""
        if reason := optimizer.not_under_fixed_norm():
            raise ZooError(f"constraint: fixed-readout cannot be combined with this optimizer: {reason}")
