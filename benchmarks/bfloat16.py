"""Products of bfloat16 by torch, or in float32 and rounded: training steps, and Muon's iteration.

    python -m benchmarks.bfloat16

On a processor without instructions for bfloat16 zoo computes them in float32 and rounds; on one that has
them, it calls torch. Every contender does what its name says, whatever the processor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product

import torch

from benchmarks.harness import Contender, Ratio, interleave, parser, serve, write
from zoo import build_model, build_optimizer
from zoo.kernels import matmul
from zoo.optim.newton_schulz import orthogonal
from zoo.train.compilation import compiled_loss

SIDES = ("float32", "torch", "rounded")
MODELS = {"1.6M": (128, 6, 16, 128), "11M": (384, 6, 8, 256)}
"""Width, blocks, batch and context of GPT, with heads of 16 and 4,096 tokens of vocabulary."""
TASKS = ("newton_schulz", *MODELS)


def training_step(width: int, blocks: int, batch: int, context: int, rounds: bool) -> Callable[[], object]:
    """A step of GPT with AdamW, compiled block by block."""
    torch.manual_seed(0)
    model = build_model("gpt", vocab_size=4096, d_model=width, n_layers=blocks, n_heads=width // 16)
    optimizer = build_optimizer(model, "adamw", lr=1e-3)
    loss = compiled_loss(model, "blocks")
    rows = torch.randint(4096, (batch, context + 1))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=rounds):
            total = loss(rows[:, :-1], rows[:, 1:]).total
        total.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()

    return step


def worker(task: str, side: str) -> None:
    """Measure one side of a task, as often as asked."""
    matmul.BFLOAT16 = side == "torch"
    if task in MODELS:
        work = training_step(*MODELS[task], rounds=side != "float32")
    else:  # the matrices of two blocks of width 512
        dtype = torch.float32 if side == "float32" else torch.bfloat16
        stacks = [torch.randn(8, 512, 512, dtype=dtype), torch.randn(6, 512, 2048, dtype=dtype)]

        def work() -> list[torch.Tensor]:
            return [orthogonal(stack, 5) for stack in stacks]

    def seconds() -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    for _ in range(3):
        work()
    serve({"task": task, "products": side}, seconds)


def main() -> None:
    """Measure all sides of a task in turns, task by task."""
    options = parser(__doc__ or "")
    options.add_argument("--worker", nargs=2, metavar=("TASK", "SIDE"), help=argparse.SUPPRESS)
    options.add_argument("--steps", type=int, default=5, help="per turn, besides one to warm up")
    given = options.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    if given.device != "cpu":
        raise SystemExit(f"--device {given.device}: expected cpu, the only one that may lack instructions")
    every: dict[tuple[str, str], Contender] = {}
    for task in TASKS:
        for side in SIDES:
            arguments = ["benchmarks.bfloat16", "--worker", task, side]
            every[task, side] = Contender.start(f"{task} {side}", arguments, given.keep_memory)
        sides = [every[task, side] for side in SIDES]
        interleave(sides, given.rounds, given.steps)
        for contender in sides:
            contender.stop()
    rows = [{**c.about, "ms": round(1000 * statistics.median(c.rounds), 1)} for c in every.values()]
    pairs = (("rounded", "torch"), ("rounded", "float32"))
    ratios = [Ratio.of(t, every[t, one], every[t, other]) for t, (one, other) in product(TASKS, pairs)]
    title = "Products of bfloat16 in float32, rounded"
    command = "python -m benchmarks.bfloat16 " + " ".join(sys.argv[1:])
    write(given.name or "bfloat16", title, command, list(every.values()), rows, ratios)


if __name__ == "__main__":
    main()
