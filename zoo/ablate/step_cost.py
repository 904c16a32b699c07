"""The cost of a step of a run, counted on meta tensors."""

from __future__ import annotations

from typing import NamedTuple

from zoo.run.config import RunConfig
from zoo.run.flops import run_flops
from zoo.run.job import Job


class StepCost(NamedTuple):
    """The cost of a training step, in targets and in floating point operations.

    Attributes:
        targets: number of training targets, for instance tokens.
        flops: floating point operations of the step, those of the optimizer and its share of the evaluations
            included.
    """

    targets: int
    flops: float


def step_cost(config: RunConfig) -> StepCost:
    """Count the targets and the operations of a step."""
    train = Job.of(config).train
    flops = run_flops(config)
    batch = train.batch_size * flops.targets
    evaluations = (train.eval_batches or 0) / train.eval_every
    return StepCost(batch, batch * (flops.training + flops.forward * evaluations) + flops.update)
