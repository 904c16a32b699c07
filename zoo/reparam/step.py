"""What reparameterisations measure once per training step: it follows the optimizer, not the forward pass."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from zoo.spec import Module


def attach_measurements(optimizer: Optimizer, model: nn.Module) -> None:
    """After every step of `optimizer`, let the reparameterisations of `model` measure the new weights.

    Evaluation, the parts of an accumulated batch and recomputed activations therefore all see the
    measurements of the last step, and no training loop can forget it, ours or a user's.

    Args:
        optimizer: any optimizer of the parameters of `model`.
        model: plain or sharded.
    """
    owners = [m for m in model.modules() if isinstance(m, Module) and m.reparameterised]

    def measure(*_: Any) -> None:
        for module in owners:
            for name, reparameterisation in module.reparameterised.items():
                reparameterisation.after_step(module, name)

    if owners:
        optimizer.register_step_post_hook(measure)
