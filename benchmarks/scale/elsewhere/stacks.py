"""Steps of a question's optimizers with all small matrices of one shape at once, and with one at a time.

python -m benchmarks.scale.elsewhere.stacks q2-ngpt

For every side at its largest size: the distance between the weights at the end of both, over the distance
that they have gone, and the time that a host takes to ask for a step. Gradients are random. On a processor
both are one at a time.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from torch import Tensor

from benchmarks.scale.place import THE_STUDY
from benchmarks.scale.questions import BY_KEY
from zoo.kernels import stacks
from zoo.run.config import RunConfig
from zoo.run.first_weights import initial_model
from zoo.run.job import Job
from zoo.run.optimizer import build_optimizer
from zoo.train.distributed import World, world
from zoo.train.step import Stepper, StepResult, global_norm

STEPS = 24
SCALE = 0.01
"""Deviation of the gradients' entries."""


def train(config: RunConfig, ranks: World) -> tuple[list[Tensor], list[Tensor], float]:
    """Take steps; return the weights before and after them, and the median of a step in milliseconds."""
    job = Job.of(config)
    model = initial_model(config, ranks.device, lambda model: None).model
    config.constraint.apply(model)
    optimizer = build_optimizer(model, job.optimizer, transfer=config.transfer, steps=job.train.steps)
    clip = job.train.clip.build(job.train.clip_norm)
    clip.prepare(model)
    stepper = Stepper(model, model.loss, optimizer, ranks, 1, job.train.precision, clip, 0.0)
    parameters = list(model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator(ranks.device).manual_seed(1)
    sums, times = torch.ones(4, device=ranks.device), []
    for step in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter).normal_(0, SCALE, generator=generator)
        wait(ranks.device)
        start = time.perf_counter()
        result = StepResult(sums, global_norm(parameter.grad for parameter in parameters))
        stepper.update(result, pending=step > 0)
        times.append(1000 * (time.perf_counter() - start))
        wait(ranks.device)
    return before, [parameter.detach() for parameter in parameters], median(times[1:])


def wait(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The Euclidean distance between two sets of weights."""
    return global_norm(a - b for a, b in zip(ours, theirs, strict=True)).item()


def main() -> None:
    """Print a line for every side."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("question", choices=BY_KEY, metavar="QUESTION")
    options.add_argument("--device", default="auto")
    given = options.parse_args()
    largest = stacks.LARGEST
    with world(given.device) as ranks:
        for side in THE_STUDY.load(BY_KEY[given.question]).ladder[-1].sides:
            stacks.LARGEST = 0
            before, alone, old = train(side.config, ranks)
            stacks.LARGEST = largest
            _, together, new = train(side.config, ranks)
            share = distance(together, alone) / distance(alone, before)
            print(f"{side.variant}: {share:.1e} apart, {old:.2f} -> {new:.2f} ms a step", flush=True)


if __name__ == "__main__":
    main()
