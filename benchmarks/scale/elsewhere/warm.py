"""Compiles the models of some questions while their sweeps begin, so that no worker waits for it.

python -m benchmarks.scale.elsewhere.warm q2-ngpt q3

All shapes are compiled at once, but the smallest models are left to the workers of the sweep, which begins
with them. What is compiled stays in the cache of torch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.scale.place import THE_STUDY
from benchmarks.scale.questions import BY_KEY
from zoo.ablate.compiling import shape_of
from zoo.run.config import RunConfig, load_config, plain
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.cores import cores
from zoo.utils.untyped import JsonObject

STEPS = 3
"""So many that a graph is recorded and replayed."""


def shapes(keys: list[str]) -> list[tuple[str, RunConfig]]:
    """A configuration for every shape but the smallest that is compiled, with its name."""
    found: dict[str, tuple[int, str, RunConfig]] = {}
    for question in (BY_KEY[key] for key in keys):
        for number, size in enumerate(THE_STUDY.load(question).ladder[1:], 2):
            for side in size.sides:
                if Job.of(side.config).train.compile:
                    name = f"{question.key} {side.variant}, size {number}"
                    found.setdefault(shape_of(side.config), (number, name, side.config))
    return [(name, config) for _, name, config in sorted(found.values(), key=lambda known: known[0])]


def compile_one(name: str, fields: JsonObject) -> str:
    """Train a few steps, and say how long it took."""
    start = time.monotonic()
    config = load_config(fields)
    with tempfile.TemporaryDirectory() as folder:
        there = Job.of(config).train.model_copy(update={"runs_dir": Path(folder)})
        train(config.model_copy(update={"name": "warm", "train": there}), until=STEPS)
    return f"{name}: {time.monotonic() - start:.0f} s"


def main() -> None:
    """Compile all shapes, each in a process of its own."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("questions", nargs="+", choices=BY_KEY, metavar="QUESTION")
    keys = options.parse_args().questions
    with ProcessPoolExecutor(cores(), get_context("spawn"), max_tasks_per_child=1) as pool:
        jobs = [pool.submit(compile_one, name, plain(config)) for name, config in shapes(keys)]
        for job in jobs:
            print(job.result(), flush=True)


if __name__ == "__main__":
    main()
