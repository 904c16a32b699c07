"""The cost of a step of a run, counted on meta tensors."""

from __future__ import annotations

from typing import NamedTuple

from zoo.checkpoint.recipe import declare
from zoo.run.config import RunConfig
from zoo.run.explanation import flops_per_target, update_flops
from zoo.run.factory import recipe_of
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
    job = Job.of(config)
    model = declare(recipe_of(job.config))
    *_, targets = model.example(1, job.data.length)
    forward, training = flops_per_target(model, job.data.length)
    batch = job.train.batch_size * targets.numel()
    evaluations = (job.train.eval_batches or 0) / job.train.eval_every
    update = update_flops(model, job.optimizer)
    return StepCost(batch, batch * (training + forward * evaluations) + update)
