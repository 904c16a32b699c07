"""What `zoo explain --ranks` foresees beside a whole training step on fake ranks and fake tensors.

    python -m benchmarks.fake_ranks            # the table of docs/results/fake-ranks.md
    python -m benchmarks.fake_ranks CONFIG --ranks 8 train.accumulation=2

The step is that of the training loop: FSDP2 over torch's fake process group, of which this process is the
first rank, two parts of an accumulated batch, the norm, clipping, the optimizer. Every tensor that an
operator makes is counted until it is freed; nothing of the forecast's arithmetic is used. Fake tensors have
sizes and no memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, _sharding_prop
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import RESULTS, table
from zoo.checkpoint.recipe import declare, materialise
from zoo.init import freeze
from zoo.models import Model
from zoo.optim.state import tensors_in
from zoo.run.config import load_config
from zoo.run.factory import recipe_of
from zoo.run.job import Job
from zoo.run.optimizer import build_optimizer
from zoo.train.distributed import World
from zoo.train.forecast import Operations, forecast
from zoo.train.live_memory import LiveMemory
from zoo.train.recompute import recompute
from zoo.train.step import Stepper, StepResult, global_norm

CONFIGS = ("wesar-13b", "ngpt-1.0b-8k", "gpt-0.5b")
CASES = ((8, "none"), (64, "none"), (8, "blocks"))
"""Ranks, and what is recomputed."""

WAIT = torch.ops._c10d_functional.wait_tensor.default
ACCUMULATION = 2
EXAMPLES = 2
"""Sequences that a rank computes at once; small, because the time of fake operators is all the same."""


class Exchanges(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts collectives by their kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kinds = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace in ("c10d", "_c10d_functional") and func is not WAIT:
            self.kinds[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Found:
    """The costs of a rank's training step, in bytes.

    Attributes:
        state: bytes of weights, buffers and slots before the step.
        peak: the largest number of bytes that are in use during the step.
        flops: floating point operations of matrix products and attention.
        exchanges: number of collectives of forward passes, backward passes and norm.
        update_exchanges: number of collectives of clipping and the optimizer.
    """

    state: int
    peak: int
    flops: int
    exchanges: int
    update_exchanges: int


def step(job: Job, ranks: int) -> Found:
    """Take one training step as the first of so many ranks, which do not exist.

    `train.parallel.sync` should be said: `auto` asks this machine's memory.
    """
    t, device = job.train, torch.device("cpu")
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    copies = t.parallel.copies(ranks)
    shape = (ranks,) if copies == 1 else (copies, ranks // copies)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    try:
        world = World(0, ranks, device, mesh, t.parallel)
        # DTensor finds out the shape of a result on fake tensors of the whole size, which no rank holds. In a
        # fake mode of its own, instead of the active one, they are not counted.
        apart = mock.patch.object(_sharding_prop, "detect_fake_mode", return_value=None)
        with FakeTensorMode(), apart:
            model = declare(recipe_of(job.config))
            freeze(model, job.config.freeze)
            world.shard(model)
            materialise(model, device)
            job.config.constraint.apply(model)
            recompute(model, t.recompute)
            model.train()
            optimizer = build_optimizer(model, job.optimizer)
            clip = t.clip.build(t.clip_norm)
            clip.prepare(model)
            stepper = Stepper(
                model, model.loss, optimizer, world, t.accumulation, t.precision, clip, t.z_loss
            )
            # An update makes the slots.
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            stepper.update(result_of(model), pending=True)
            slots = [tensor for _, tensor in tensors_in(list(optimizer.state.values()))]
            batch = model.example(t.batch_size // ranks, job.data.length)
            with LiveMemory([*model.parameters(), *model.buffers(), *slots]) as memory:
                state = memory.now
                with Operations() as operations, Exchanges() as forth:
                    stepper.backward(batch, lambda: False)
                    result = result_of(model)
                with Exchanges() as update:
                    stepper.update(result, pending=True)
        return Found(state, memory.peak, operations.count, forth.kinds.total(), update.kinds.total())
    finally:
        dist.destroy_process_group()


def result_of(model: Model) -> StepResult:
    """The measurements of a step whose numbers are not known, but for the norm, a fake tensor."""
    return StepResult(torch.zeros(4), global_norm(p.grad for p in model.parameters()))


def compare(name: str, ranks: int, overrides: list[str]) -> dict[str, str]:
    """A row of the table: predicted and found."""
    job = Job.of(load_config(name, overrides))
    way = job.train.recompute
    foreseen = forecast(job, ranks, ways=[way])
    found = step(job, ranks)
    (activations,) = foreseen.activations
    state = foreseen.weights + (foreseen.slots or 0)
    count = sum(exchange.count for exchange in foreseen.exchanges)

    def pair(ours: int, theirs: int, unit: float) -> str:
        return f"{ours / unit:.2f} / {theirs / unit:.2f} ({ours / theirs - 1:+.1%})"

    return {
        "config": name,
        "ranks": str(ranks),
        "recompute": way,
        "weights and slots, GiB": pair(state, found.state, 2**30),
        "peak, GiB": pair(activations.peak, found.peak, 2**30),
        "TFLOP": pair(activations.flops, found.flops, 1e12),
        "collectives": f"{count} / {found.exchanges}",
        "of the update": str(found.update_exchanges),
    }


def main() -> None:
    """Print one row, or make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("config", nargs="?")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_intermixed_args()
    if given.config is not None:
        warnings.simplefilter("ignore")
        print(json.dumps(compare(given.config, given.ranks, given.overrides)))
        return
    rows = []
    for name, (ranks, way) in itertools.product(CONFIGS, CASES):
        batch = f"train.batch_size={ranks * ACCUMULATION * EXAMPLES}"
        overrides = [batch, f"train.accumulation={ACCUMULATION}", "train.parallel.sync=every"]
        command = [sys.executable, "-m", "benchmarks.fake_ranks", name, "--ranks", str(ranks)]
        command += [*overrides, f"train.recompute={way}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(rows[-1], file=sys.stderr, flush=True)
    page = f"# A training step, foreseen and found\n\n{__doc__}\n{table(rows)}\n"
    Path(RESULTS / "fake-ranks.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
