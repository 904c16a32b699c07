"""Instructions with and without packing: tokens per second without padding, and the share of padding.

    python -m benchmarks.packing quickstart-gpt train.device=cuda train.precision=bf16
    python -m benchmarks.packing quickstart-gpt --data answers.jsonl --context 1024

Both sides train the same model on the same examples, step by step in turns. A row with packing has as many
tokens as the context, and without packing a batch has as many examples as the packed one has on average.
Without --data the examples are made up: the lengths of their answers are log-normal, with a median of 60
characters and a sigma of 1, cut at the context.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from zoo.data.dataset import BatchSpec
from zoo.data.instructions.dataset import InstructionDataset
from zoo.nn.loss import IGNORED
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.build import Parts, build
from zoo.train.distributed import world
from zoo.train.start import Start

WARM_UP, STEPS = 3, 20
EXAMPLES, ROWS = 2000, 8


def made_up(context: int) -> list[dict[str, str]]:
    """Prompts and answers of random digits."""
    generator = random.Random(0)
    lengths = [min(context - 32, int(generator.lognormvariate(4.1, 1)) + 1) for _ in range(EXAMPLES)]
    return [
        {"prompt": f"Say {n}", "response": "".join(generator.choices("0123456789", k=n))} for n in lengths
    ]


@dataclass
class Side:
    """Training with or without packing.

    Attributes:
        parts: model, optimizer and data.
        batch_size: rows of a batch.
        seconds: of each measured step.
        tokens: of each measured step, without padding.
        cells: of each measured step, with padding.
    """

    parts: Parts
    batch_size: int
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)

    def step(self, number: int, measured: bool) -> None:
        """Train on one batch."""
        batch = self.parts.dataset.train_batch(BatchSpec(0, number, self.batch_size))
        begin = time.perf_counter()
        self.parts.stepper.update(self.parts.stepper.gradient(batch, lambda: False))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        passed = time.perf_counter() - begin
        if measured:
            self.seconds.append(passed)
            self.tokens.append(used(batch[-1]))
            self.cells.append(batch[-1].numel())


def used(targets: Tensor) -> int:
    """The tokens before the padding, which begins behind the last target of each row."""
    places = torch.arange(1, targets.shape[1] + 1)
    return int(torch.where(targets != IGNORED, places, 0).amax(1).sum())


def main() -> None:
    """Train both and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("config", nargs="?", default="quickstart-gpt")
    options.add_argument("overrides", nargs="*")
    options.add_argument("--data", type=Path, help="conversations; without it they are made up")
    options.add_argument("--context", type=int, default=256)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.data or Path(folder, "made_up.jsonl")
        if given.data is None:
            lines = (json.dumps(row) + "\n" for row in made_up(given.context))
            path.write_text("".join(lines), encoding="utf-8")
        sides: dict[str, Side] = {}
        rows = ROWS
        for name, packing in (("packed", True), ("padded", False)):
            data = {"type": "instructions", "train": str(path), "validation": None, "context": given.context}
            fields = [
                f"data={json.dumps({**data, 'packing': packing})}",
                f"train.batch_size={rows}",
                f"train.runs_dir={folder}",
                *given.overrides,
            ]
            job = Job.of(load_config(given.config, fields))
            with world(job.train.device, job.train.parallel) as ranks:
                sides[name] = Side(build(job, Start(), ranks), rows)
            dataset = sides[name].parts.dataset
            assert isinstance(dataset, InstructionDataset)
            rows = round(rows * len(dataset.train_examples.encoded) / len(dataset.train_examples))
        for number in range(WARM_UP + STEPS):
            for side in sides.values():
                side.step(number, number >= WARM_UP)
    print(f"{given.config}, context {given.context}, {STEPS} steps each, medians:")
    for name, side in sides.items():
        speed = statistics.median(t / s for t, s in zip(side.tokens, side.seconds, strict=True))
        padding = 1 - sum(side.tokens) / sum(side.cells)
        print(f"{name}: {speed:,.0f} tokens/s without padding, {padding:.1%} of a batch is padding")


if __name__ == "__main__":
    main()
