"""The cost of a step of a run, counted on meta tensors."""

from __future__ import annotations

from typing import NamedTuple

from zoo.run.config import RunConfig
from zoo.run.flops import run_flops
from zoo.run.job import Job


class StepCost(NamedTuple):
    """The cost of a training step, in units of the data and in floating point operations.

    Attributes:
        units: number of tokens, or of other units of the data, for instance images.
        flops: floating point operations of the step, those of the optimizer and its share of the evaluations
            included.
    """

    units: int
    flops: float


def step_cost(config: RunConfig) -> StepCost:
    """Count the units and the operations of a step."""
    job, flops = Job.of(config), run_flops(config)
    train = job.train
    evaluations = (train.eval_batches or 0) / train.eval_every
    evaluated = train.batch_size * flops.example.forward * evaluations
    return StepCost(train.batch_size * job.data.units.number, flops.step + evaluated)
