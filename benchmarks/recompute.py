"""What `train.recompute` saves and costs: bytes counted, time measured if that is asked for.

    python -m benchmarks.recompute                                      # docs/results/recompute.md
    python -m benchmarks.recompute ngpt-0.5b data.context=8192          # another configuration
    python -m benchmarks.recompute quickstart-gpt --time --device cpu   # and the time of its steps

Bytes are those of `zoo explain --ranks 1`: a batch of 8 on tensors without memory, with torch's operators for
a CPU. They are the same on every machine. Time needs a quiet one, with room for three models.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import get_args

import torch

from benchmarks.harness import RESULTS, machine, table
from zoo.data import BatchSpec
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.build import build
from zoo.train.distributed import World
from zoo.train.forecast import Recompute, forecast
from zoo.train.start import Start

WAYS: tuple[Recompute, ...] = get_args(Recompute)
CONFIGS = ("gpt-0.5b", "gpt-0.5b-8k", "ngpt-0.5b-8k", "wesar-1.3b")
EXAMPLES = 8
"""Sequences that are computed at once."""
WARM_UP = 2


def job_of(config: str, overrides: Sequence[str]) -> Job:
    """The run, with `EXAMPLES` sequences in a step where nothing else is said."""
    return Job.of(load_config(config, [f"train.batch_size={EXAMPLES}", *overrides]))


def counted(name: str, job: Job) -> list[dict[str, str]]:
    """A row for each way: what is kept for the backward pass, and the peak."""
    found = forecast(job, 1).activations
    plain = found[0]
    return [
        {
            "config": name,
            "context": str(job.data.length),
            "recompute": way.recompute,
            "kept, GiB": f"{way.kept / 2**30:.2f}",
            "kept / none": f"{way.kept / plain.kept:.3f}",
            "peak of the step, GiB": f"{way.peak / 2**30:.2f}",
        }
        for way in found
    ]


def seconds(jobs: Mapping[Recompute, Job], device: torch.device, steps: int) -> dict[Recompute, float]:
    """The median time of a step of each job, taken in turns; all of them are in memory together."""
    runs = {way: build(job, Start(), World(0, 1, device)) for way, job in jobs.items()}
    taken: dict[Recompute, list[float]] = {way: [] for way in jobs}
    for step in range(WARM_UP + steps):
        for way, parts in runs.items():
            spec = BatchSpec(0, step, jobs[way].train.batch_size, 0, 1)
            batch = parts.dataset.train_batch(spec)
            start = time.perf_counter()
            parts.stepper.update(parts.stepper.gradient(batch, lambda: False))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken[way].append(time.perf_counter() - start)
    return {way: statistics.median(values[WARM_UP:]) for way, values in taken.items()}


def main() -> None:
    """Print the rows of one configuration, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--time", action="store_true", help="measure steps too, of the named configuration")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_intermixed_args()
    if given.config is None:
        if given.time:
            parser.error("--time: expected a configuration")
        rows = [row for name in CONFIGS for row in counted(name, job_of(name, []))]
        page = f"# Recomputation\n\n{__doc__}\n{table(rows)}\n"
        (RESULTS / "recompute.md").write_text(page, encoding="utf-8")
        print(page)
        return
    job = job_of(given.config, given.overrides)
    rows = counted(given.config, job)
    if given.time:
        jobs = {way: job_of(given.config, [*given.overrides, f"train.recompute={way}"]) for way in WAYS}
        taken = seconds(jobs, torch.device(given.device), given.steps)
        for row, way in zip(rows, WAYS, strict=True):
            row["time / none"] = f"{taken[way] / taken['none']:.3f}"
        print(machine(given.device), file=sys.stderr)
    print(table(rows))


if __name__ == "__main__":
    main()
