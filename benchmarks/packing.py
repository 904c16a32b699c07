"""Instructions with and without packing: tokens per second without padding, and the share of padding.

    python -m benchmarks.packing quickstart-gpt train.device=cuda train.precision=bf16
    python -m benchmarks.packing quickstart-gpt --data answers.jsonl --context 1024

The page is docs/results/packing-DEVICE-CONTEXT.md.

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
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness import write_page
from zoo.data.dataset import BatchSpec
from zoo.data.instructions.dataset import InstructionDataset
from zoo.nn.loss import IGNORE_INDEX
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
        parts: the model, the optimizer and the data.
        batch_size: number of rows of a batch.
        seconds: the duration of each measured step in seconds.
        tokens: number of tokens of each measured step, without padding.
        cells: number of tokens of each measured step, with padding.
    """

    parts: Parts
    batch_size: int
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)

    @property
    def speeds(self) -> list[float]:
        """Tokens per second without padding, of each measured step."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def padding(self) -> float:
        """The share of padding in the measured batches."""
        return 1 - sum(self.tokens) / sum(self.cells)

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
    return int(torch.where(targets != IGNORE_INDEX, places, 0).amax(1).sum())


def main() -> None:
    """Train both and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("config", nargs="?", default="quickstart-gpt")
    options.add_argument("overrides", nargs="*")
    options.add_argument("--data", type=Path, help="conversations; without it they are made up")
    options.add_argument("--context", type=int, default=256)
    options.add_argument("--steps", type=int, default=STEPS, help="measured steps of each side")
    options.add_argument("--name", help="of the files in docs/results")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.data or Path(folder, "made_up.jsonl")
        if given.data is None:
            lines = (json.dumps(row) + "\n" for row in made_up(given.context))
            path.write_text("".join(lines), encoding="utf-8")
        sides: dict[str, Side] = {}
        size = ROWS
        for name, packing in (("packed", True), ("padded", False)):
            own = [f"train.batch_size={size}", f"train.runs_dir={folder}", *given.overrides]
            data: dict[str, object] = {"type": "instructions", "train": str(path), "validation": None}
            data |= {"context": given.context, "packing": packing}
            instructions = load_config({"data": data}).data
            job = Job.of(load_config(given.config, own).model_copy(update={"data": instructions}))
            with world(job.train.device, job.train.parallel) as ranks:
                sides[name] = Side(build(job, Start(), ranks), size)
            dataset = sides[name].parts.dataset
            assert isinstance(dataset, InstructionDataset)
            size = round(size * len(dataset.train_examples.encoded) / len(dataset.train_examples))
        for number in range(WARM_UP + given.steps):
            for side in sides.values():
                side.step(number, number >= WARM_UP)
        device = next(sides["packed"].parts.model.parameters()).device.type
    packed, padded = sides["packed"].speeds, sides["padded"].speeds
    ratios = [ours / theirs for ours, theirs in zip(packed, padded, strict=True)]
    rows = [
        {
            "": name,
            "rows of a batch": side.batch_size,
            "padding": f"{side.padding:.1%}",
            "tokens/s without padding": f"{statistics.median(side.speeds):,.0f}",
        }
        for name, side in sides.items()
    ]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    write_page(
        given.name or f"packing-{device}-{given.context}",
        f"Instructions with and without packing: {given.config}, context {given.context}",
        " ".join(["python -m benchmarks.packing", *sys.argv[1:]]),
        {name: {"seconds": side.seconds, "tokens": side.tokens} for name, side in sides.items()},
        [rows, [{"tokens/s": "packed / padded, step by step", "median (min-max)": ratio}]],
        device,
    )


if __name__ == "__main__":
    main()
