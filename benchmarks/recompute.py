"""What `train.recompute` saves and costs: bytes counted, time measured if that is asked for.

    python -m benchmarks.recompute                                      # docs/results/recompute.md
    python -m benchmarks.recompute ngpt-0.5b data.context=8192          # another configuration
    python -m benchmarks.recompute --time                               # docs/results/recompute-time-cpu.md
    python -m benchmarks.recompute quickstart-gpt --time --device cpu   # the time of steps of another one

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

from benchmarks.harness import RESULTS, described, table
from zoo.data import BatchSpec
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.run.train_config import Recompute
from zoo.train.build import build
from zoo.train.distributed import World
from zoo.train.forecast import forecast
from zoo.train.start import Start

WAYS: tuple[Recompute, ...] = get_args(Recompute)
CONFIGS = ("gpt-0.5b", "gpt-0.5b-8k", "ngpt-0.5b-8k", "wesar-1.3b")
TIMED = (
    ("quickstart-gpt",),
    ("quickstart-ngpt",),
    ("quickstart-gpt", "model.d_model=768", "model.n_heads=12", "data.context=512", "train.batch_size=4"),
    ("quickstart-gpt", "train.precision=bf16"),
)
"""Configurations whose steps two cores take in seconds."""
EXAMPLES = 8
"""Sequences that are computed at once."""
WARM_UP = 2
TIME = """Medians of steps that the three ways take in turns. Steps are not compiled. Bytes are those of
`zoo explain`, as on the page of [what is kept](recompute.md)."""


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


def timed(config: str, overrides: Sequence[str], device: str, steps: int) -> list[dict[str, str]]:
    """The rows of `counted`, with the time of a step over that without recomputation."""
    rows = counted(" ".join((config, *overrides)), job_of(config, overrides))
    jobs = {way: job_of(config, [*overrides, f"train.recompute={way}"]) for way in WAYS}
    taken = seconds(jobs, torch.device(device), steps)
    for row, way in zip(rows, WAYS, strict=True):
        row |= {"s/step": f"{taken[way]:.3f}", "time / none": f"{taken[way] / taken['none']:.3f}"}
    return rows


def write_page(name: str, text: str) -> None:
    """Write and print a page of results."""
    (RESULTS / name).write_text(text, encoding="utf-8")
    print(text)


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
            rows = [row for c, *o in TIMED for row in timed(c, o, given.device, given.steps)]
            about = described(given.device)
            text = f"# Recomputation: time\n\n`python -m benchmarks.recompute --time`\n\n{about}\n\n{TIME}\n"
            write_page(f"recompute-time-{given.device}.md", f"{text}\n{table(rows)}\n")
            return
        rows = [row for name in CONFIGS for row in counted(name, job_of(name, []))]
        write_page("recompute.md", f"# Recomputation\n\n{__doc__}\n{table(rows)}\n")
        return
    if given.time:
        print(table(timed(given.config, given.overrides, given.device, given.steps)))
        print(described(given.device), file=sys.stderr)
        return
    print(table(counted(given.config, job_of(given.config, given.overrides))))


if __name__ == "__main__":
    main()
