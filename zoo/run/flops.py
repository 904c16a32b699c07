"""The floating point operations of training: those of the model per target, and the optimizer's per step."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from zoo.models import Model
from zoo.optim.base import OptimizerConfig
from zoo.run.config import RunConfig
from zoo.run.declared_once import declared_once
from zoo.spec import declared
from zoo.utils.dispatch import dispatched_alone
from zoo.utils.errors import ConfigError


class ModelFLOPs(NamedTuple):
    """The floating point operations of a model.

    Attributes:
        targets: number of training targets of one example, for instance tokens.
        forward: operations of the forward pass per target.
        training: operations of the forward and the backward pass together per target. Gradients of frozen
            parameters are not computed, and do not count.
    """

    targets: int
    forward: int
    training: int


class RunFLOPs(NamedTuple):
    """The floating point operations of a run.

    Attributes:
        targets: as in `ModelFLOPs`.
        forward: as in `ModelFLOPs`.
        training: as in `ModelFLOPs`.
        update: operations of the optimizer's matrix products per step; 0 without an optimizer.
    """

    targets: int
    forward: int
    training: int
    update: float


def run_flops(config: RunConfig) -> RunFLOPs:
    """Count the operations of a run, once for all runs that share a model and the length of their examples.

    Args:
        config: a configuration with a model and data.

    Raises:
        ConfigError: The configuration has no model or no data, or a rule of `freeze` matches nothing.
    """
    if config.model is None or config.data is None:
        place = config.place(()) or config.name
        raise ConfigError(f"{place}: no model or no data; expected the configuration of a run, with both")
    model = declared_once(config)
    update = 0.0 if config.optimizer is None else update_flops(model, config.optimizer)
    return RunFLOPs(*_counted_once(model, config.data.length), update)


@dispatched_alone
def model_flops(model: Model, length: int) -> ModelFLOPs:
    """Count the floating point operations of a model on meta tensors.

    Args:
        model: a model on the meta device.
        length: length of the example.

    Returns:
        The operations per target (token, image). Matrix products and attention are counted (all of
        attention, not its causal half); elementwise work is not.
    """
    *inputs, targets = (t.to("meta") for t in model.example(1, length))
    model.eval()  # a single example may be too small for batch statistics
    with FlopCounterMode(display=False) as forward:
        logits = model(*inputs)
    with FlopCounterMode(display=False) as backward:
        logits.backward(torch.empty_like(logits))
    once, units = forward.get_total_flops(), targets.numel()
    return ModelFLOPs(units, once // units, (once + backward.get_total_flops()) // units)


_counted_once = cache(model_flops)


def update_flops(model: Model, optimizer: OptimizerConfig) -> float:
    """The floating point operations of the matrix products in the update of all trained parameters.

    Args:
        model: a model on any device; its parameters may be frozen.
        optimizer: the settings of the optimizer.
    """
    return sum(optimizer.update_flops(p.spec) for p in declared(model) if not p.spec.frozen)
