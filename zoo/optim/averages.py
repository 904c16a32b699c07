"""Optimizers that compute gradients at one point and are evaluated at another (Schedule-Free AdamW)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer

from zoo.nn.sphere import project
from zoo.optim.attach import spheres
from zoo.spec import Module
from zoo.utils.errors import ConfigError


@runtime_checkable
class Averaging(Protocol):
    """The interface of such an optimizer: its methods move the parameters to either point."""

    def train(self) -> object:
        """Move the parameters to where the next gradient is computed."""

    def eval(self) -> object:
        """Move the parameters to where the model is evaluated."""


def set_training_mode(optimizer: Optimizer) -> None:
    """Put a newly built optimizer into training mode; some start in evaluation mode."""
    if isinstance(optimizer, Averaging):
        optimizer.train()


def check_statistics(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse a model that would be evaluated with weights other than those its statistics belong to.

    Args:
        optimizer: any optimizer.
        model: the model that it trains.

    Raises:
        ConfigError: The optimizer evaluates an average of the weights, and the model has running statistics
            of the activations (batch normalization), which are those of the weights that are trained.
    """
    if not isinstance(optimizer, Averaging):
        return
    for path, module in model.named_modules():
        if isinstance(module, Module) and module.averaged_buffers:
            raise ConfigError(
                f"optimizer: {type(optimizer).__name__} evaluates an average of the weights, but the running "
                f"statistics of {path or type(model).__name__} are those of the trained weights; expected "
                "another optimizer, or a model without batch normalization"
            )


@contextmanager
def evaluation_weights(optimizer: Optimizer, model: nn.Module) -> Iterator[None]:
    """Within a `with` block, set the parameters to those to evaluate, an average for instance.

    Vectors on spheres are averaged and projected. At the end all parameters get their values back bit for
    bit.

    Args:
        optimizer: Any optimizer; for most of them nothing changes.
        model: The model that it trains.

    Raises:
        ConfigError: See `check_statistics`.
    """
    if not isinstance(optimizer, Averaging):
        yield
        return
    check_statistics(optimizer, model)
    before = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]
    optimizer.eval()
    project((parameter, dim) for _, parameter, dim in spheres(model))
    try:
        yield
    finally:
        optimizer.train()
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)
