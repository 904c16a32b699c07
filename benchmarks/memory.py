"""What it is worth that training keeps freed memory and asks for huge pages: page faults and time of a step.

    python -m benchmarks.memory                                     # docs/results/memory-cpu.md
    python -m benchmarks.memory quickstart-gpt train.batch_size=4   # another run, printed

Page faults are counts, which a busy machine does not change; for the seconds the machine has to be quiet. The
settings take turns, each in a process of its own; the columns are medians of steps over all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.harness import RESULTS, ROOT, described, table

SETTINGS = {
    "left to glibc": {"MALLOC_PERTURB_": "0", "THP_MEM_ALLOC_ENABLE": "0"},
    "freed memory kept": {"THP_MEM_ALLOC_ENABLE": "0"},
    "and huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},
}
"""The first variable has no effect of its own: zoo leaves alone whoever sets one of glibc's allocator."""
CONFIGS = (("quickstart-gpt",), ("quickstart-gpt", "train.precision=bf16"), ("quickstart-ngpt",))
ROUNDS = 3
WARM_UP, STEPS = 5, 20


def measure(config: str, overrides: list[str]) -> None:
    """Train some steps and print page faults, processor seconds and seconds of each, as JSON."""
    import torch

    from zoo.data.dataset import BatchSpec
    from zoo.run.config import load_config
    from zoo.run.job import Job
    from zoo.train.build import build
    from zoo.train.distributed import World
    from zoo.train.start import Start
    from zoo.utils.allocator import keep_freed_memory

    keep_freed_memory()
    job = Job.of(load_config(config, ["train.device=cpu", *overrides]))
    parts = build(job, Start(), World(0, 1, torch.device("cpu")))
    found = []
    for step in range(WARM_UP + STEPS):
        batch = parts.dataset.train_batch(BatchSpec(job.config.seed, step, job.train.batch_size, 0, 1))
        before, cpu, wall = resource.getrusage(resource.RUSAGE_SELF), time.process_time(), time.perf_counter()
        parts.stepper.update(parts.stepper.gradient(batch, lambda: False))
        seconds = time.process_time() - cpu, time.perf_counter() - wall
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before.ru_minflt
        found.append((faults, *seconds))
    print(json.dumps(found[WARM_UP:]))


def steps(config: str, overrides: Sequence[str], variables: Mapping[str, str]) -> list[tuple[float, ...]]:
    """Page faults, processor seconds and seconds of each step, in a process with these variables."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--worker", config, *overrides],
        env={**os.environ, **variables},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    return [tuple(step) for step in json.loads(done.stdout)]


def rows(config: str, overrides: Sequence[str]) -> list[dict[str, str]]:
    """A row for each setting."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in SETTINGS}
    for _ in range(ROUNDS):
        for name, variables in SETTINGS.items():
            found[name] += steps(config, overrides, variables)
    medians = {
        n: [statistics.median(values) for values in zip(*all_, strict=True)] for n, all_ in found.items()
    }
    plain = next(iter(medians.values()))
    return [
        {
            "run": " ".join((config, *overrides)),
            "memory": name,
            "page faults": f"{faults:,.0f}",
            "processor s": f"{cpu:.4f}",
            "s": f"{wall:.4f}",
            "s / left to glibc": f"{wall / plain[2]:.3f}",
        }
        for name, (faults, cpu, wall) in medians.items()
    ]


def main() -> None:
    """Print the rows of one run, or write the page."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("config", nargs="?")
    options.add_argument("overrides", nargs="*")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.worker:
        measure(given.config, given.overrides)
    elif given.config:
        print(table(rows(given.config, given.overrides)))
    else:
        found = table([row for config, *overrides in CONFIGS for row in rows(config, overrides)])
        page = f"# Freed memory kept\n\n{__doc__}\n{described()}\n\n{found}\n"
        (RESULTS / "memory-cpu.md").write_text(page, encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main()
