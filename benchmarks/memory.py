"""What it is worth that training keeps freed memory and asks for huge pages: page faults and time of a step.

python -m benchmarks.memory quickstart-gpt train.batch_size=8

Page faults are counts, which a busy machine does not change; for the seconds the machine has to be quiet.
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

from benchmarks.harness import ROOT

SETTINGS = {
    "left to glibc": {"MALLOC_PERTURB_": "0", "THP_MEM_ALLOC_ENABLE": "0"},
    "freed memory kept": {"THP_MEM_ALLOC_ENABLE": "0"},
    "and huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},
}
"""The first variable has no effect of its own: zoo leaves alone whoever sets one of glibc's allocator."""
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


def main() -> None:
    """Measure each setting in a process of its own."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("config", nargs="?", default="quickstart-gpt")
    options.add_argument("overrides", nargs="*")
    options.add_argument("--worker", action="store_true")
    given = options.parse_args()
    if given.worker:
        measure(given.config, given.overrides)
        return
    print("setting: page faults, processor seconds and seconds of a step (medians)")
    for name, variables in SETTINGS.items():
        command = ["-m", "benchmarks.memory", "--worker", given.config, *given.overrides]
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **variables},
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
        medians = [statistics.median(values) for values in zip(*json.loads(done.stdout), strict=True)]
        print(f"{name}: {medians[0]:,.0f}, {medians[1]:.4f} s, {medians[2]:.4f} s")


if __name__ == "__main__":
    main()
