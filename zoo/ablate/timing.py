"""Side-by-side measurement of the training speeds of a ladder's variants, for a verdict in seconds."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import torch

from zoo.ablate.manifest import Manifest, Run, read_manifest, run_folder
from zoo.ablate.scale.speeds import FILE, Timing
from zoo.data.dataset import BatchSpec
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.build import Parts, build
from zoo.train.distributed import world
from zoo.train.start import Start
from zoo.utils.atomic import write_text
from zoo.utils.errors import DataError

FEWEST_ROUNDS = 5
STEPS = 5
"""Number of steps of a variant in a round."""


def measure_speeds(folder: Path, rounds: int) -> Timing:
    """Time a few training steps of every variant in turn, round by round, and write timing.json.

    The order of the variants is rotated from round to round. Nothing else should run on the machine.

    Args:
        folder: the folder of a ladder, at whose largest size every variant has a finished run.
        rounds: number of rounds, at least `FEWEST_ROUNDS`, after one that is not counted.

    Raises:
        ZooError: The folder is no such ladder, or the runs cannot be trained on this machine.
    """
    if rounds < FEWEST_ROUNDS:
        raise DataError(f"--time {rounds}: expected at least {FEWEST_ROUNDS} rounds")
    manifest = read_manifest(folder)
    if manifest.ladder is None:
        raise DataError(f"{folder}: a sweep without `scale`; expected a ladder")
    params, runs = _largest(manifest, folder)
    with ExitStack() as stack:
        parts: dict[str, tuple[Job, Parts]] = {}
        for name, run in runs.items():
            job = Job.of(load_config(run_folder(folder, run)))
            ranks = stack.enter_context(world(job.train.device, job.train.parallel))
            parts[name] = (job, build(job, Start(), ranks))
        for job, part in parts.values():  # warm-up: compilation and the first allocations
            _tokens_per_second(job, part, 0)
        names, speeds = list(parts), []
        for i in range(rounds):
            order = names[i % len(names) :] + names[: i % len(names)]
            speeds.append({name: _tokens_per_second(*parts[name], i + 1) for name in order})
    timing = Timing(params=params, threads=torch.get_num_threads(), rounds=tuple(speeds))
    write_text(folder / FILE, timing.model_dump_json(indent=1) + "\n")
    return timing


def _largest(manifest: Manifest, folder: Path) -> tuple[int, dict[str, Run]]:
    """The largest size at which every variant has a finished run, and one of each."""
    variants = {run.variant for run in manifest.runs}
    for params in sorted({run.params for run in manifest.runs if run.params is not None}, reverse=True):
        finished = {
            run.variant: run
            for run in manifest.runs
            if run.params == params and run.status == "finished" and "final" in run.phases
        }
        if finished.keys() == variants:
            return params, finished
    raise DataError(f"{folder}: there is no size at which every variant has a finished run")


def _tokens_per_second(job: Job, parts: Parts, place: int) -> float:
    """The speed of a few training steps without evaluations and checkpoints."""
    size = job.train.batch_size
    batches = [
        parts.dataset.train_batch(BatchSpec(job.config.seed, place * STEPS + i, size, 0, 1))
        for i in range(STEPS)
    ]
    begun = time.perf_counter()
    for batch in batches:
        parts.stepper.update(parts.stepper.gradient(batch, lambda: False))
    seconds = time.perf_counter() - begun
    return STEPS * size * parts.dataset.units_per_example / seconds
