"""The floating point operations of training: those of the model per example, and the optimizer's per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from zoo.data.dataset import DataConfig
from zoo.models import Model
from zoo.nn.loss import IGNORE_INDEX
from zoo.optim.base import OptimizerConfig
from zoo.run.config import RunConfig
from zoo.run.declared_once import declared_once
from zoo.run.job import Job
from zoo.spec import declared
from zoo.utils.dispatch import dispatched_alone


class ModelFLOPs(NamedTuple):
    """The floating point operations of a model for one batch or example.

    Attributes:
        forward: operations of the forward pass.
        training: operations of the forward and the backward pass together. Gradients of frozen parameters
            are not computed, and do not count.
    """

    forward: int
    training: int


class RunFLOPs(NamedTuple):
    """The floating point operations of a run.

    Attributes:
        example: operations of the model for one training example.
        step: operations of a training step: those of all its examples, and the optimizer's matrix products.
    """

    example: ModelFLOPs
    step: float


def run_flops(config: RunConfig) -> RunFLOPs:
    """Count the operations of a run, once for all runs that share a model and the shape of their examples.

    Args:
        config: the complete configuration of a run.

    Raises:
        ConfigError: Parts of the configuration are missing, or a rule of `freeze` matches nothing.
        DataError: The data cannot make examples of their length, or the model cannot be trained on them.
    """
    job, model = Job.of(config), declared_once(config)
    batch = training_example(model, job.data)
    key = (model, tuple(t.shape for t in batch), counted_targets(batch))
    if key not in _counted:
        _counted[key] = model_flops(model, batch)
    example = _counted[key]
    return RunFLOPs(example, job.train.batch_size * example.training + update_flops(model, job.optimizer))


def training_example(model: Model, data: DataConfig) -> Sequence[Tensor]:
    """An example with the shapes and the number of targets of those that a model is trained on.

    Args:
        model: a model on any device.
        data: the data of the run.

    Returns:
        The inputs and the targets of a batch of one, on the CPU.

    Raises:
        DataError: The data cannot make examples of their length, or the model cannot be trained on them.
    """
    data.check_model(model.recipe.model)
    example = data.example()
    return model.example(1, data.length) if example is None else example


@dispatched_alone
def model_flops(model: Model, batch: Sequence[Tensor]) -> ModelFLOPs:
    """Count the floating point operations of a model for a batch.

    Matrix products and attention are counted (all of attention, not its causal half); elementwise work is
    not, and neither is the head where a model skips ignored targets.

    Args:
        model: a model on the meta device.
        batch: inputs and targets on the CPU, as `Model.loss` takes them; only the shapes of the inputs
            matter.
    """
    *inputs, targets = batch
    model.eval()  # a single example may be too small for batch statistics
    with FlopCounterMode(display=False) as forward:
        logits = model.target_logits(*(t.to("meta") for t in inputs), targets)
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(logits, torch.empty_like(logits))
    once = forward.get_total_flops()
    return ModelFLOPs(once, once + backward.get_total_flops())


def counted_targets(batch: Sequence[Tensor]) -> int:
    """The number of targets of a batch, its last tensor, that are not ignored."""
    return int((batch[-1] != IGNORE_INDEX).sum())


_counted: dict[tuple[Model, tuple[torch.Size, ...], int], ModelFLOPs] = {}
"""The operations by the model, the shapes of an example and the number of its targets."""


def update_flops(model: Model, optimizer: OptimizerConfig) -> float:
    """The floating point operations of the matrix products in the update of all trained parameters.

    Args:
        model: a model on any device; its parameters may be frozen.
        optimizer: the settings of the optimizer.
    """
    return sum(optimizer.update_flops(p.spec) for p in declared(model) if not p.spec.frozen)
