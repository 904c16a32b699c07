"""A training step (zero_grad, forward, loss, backward, AdamW) of zoo and its peers.

    python -m benchmarks.train_step --workload small --precision bf16
    python -m benchmarks.train_step --workload large --contenders litgpt zoo-gpt:compiled

A contender runs eager and compiled, unless it is named with its mode; a side is represented by its
faster mode. Models of zoo can be named with the mode "blocks" as well, which compiles block by block.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from argparse import Namespace
from typing import cast

import torch

from benchmarks.contenders import CONTENDERS, PEERS, WORKLOADS
from benchmarks.harness import Contender, Ratio, fastest, interleave, parser, peak_memory, serve, write
from zoo.kernels.graph_cache import cache_options
from zoo.models import Model
from zoo.train.compilation import compiled_loss

MODES = ("eager", "compiled")
"""Of every contender; "blocks" is a mode of zoo's models only."""
PRECISIONS = ("f32", "bf16")


def worker(options: Namespace) -> None:
    """Train one contender on four fixed batches, step by step, as asked."""
    ((name, mode),) = options.contenders
    work, device = WORKLOADS[options.workload], options.device
    torch.manual_seed(0)
    trainee = CONTENDERS[name](work, device)
    kept = None if name in PEERS else cache_options()  # as `train.compile: true` does
    loss_of = torch.compile(trainee.loss, options=kept) if mode == "compiled" else trainee.loss
    if mode == "blocks":
        compiled_loss(
            cast(Model, trainee.model), "blocks"
        )  # replaces the model's parts, which the loss calls
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(work.vocab, (4, work.batch, work.context + 1), generator=generator).to(device)
    losses: list[float] = []

    def step() -> float:
        batch = rows[len(losses) % len(rows)]
        start = time.perf_counter()
        trainee.optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = loss_of(batch[:, :-1], batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        trainee.optimizer.step()
        losses.append(loss.item())
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    about = {
        "parameters": sum(p.numel() for p in trainee.model.parameters()),
        "first_step_s": round(step(), 2),
        "loss": [round(step() and losses[-1], 3) for _ in range(4)][-1],
        "peak_rss_mib": peak_memory(),
    }
    serve(about, step)


def compare(options: Namespace) -> None:
    """Start the contenders, measure them in turns and write the result."""
    shared = ["benchmarks.train_step", "--worker", "--workload", options.workload]
    shared += ["--precision", options.precision, "--device", options.device]
    contenders = {
        (name, mode): Contender.start(
            f"{name} {mode}", [*shared, "--contenders", f"{name}:{mode}"], options.keep_memory
        )
        for name, mode in options.contenders
    }
    interleave(list(contenders.values()), options.rounds, options.steps)
    for contender in contenders.values():
        contender.stop()

    def side(*names: str) -> Contender | None:
        present = [c for (name, _), c in contenders.items() if name in names]
        return fastest(present) if present else None

    claims = {
        "zoo-gpt / best peer": (side("zoo-gpt"), side(*PEERS)),
        "nGPT / GPT": (side("zoo-ngpt"), side("zoo-gpt")),
        "WeSaR / without": (side("zoo-wesar"), side("zoo-small")),
    }
    ratios = [Ratio.of(what, a, b) for what, (a, b) in claims.items() if a and b]
    work = WORKLOADS[options.workload]
    rows = [
        {
            "contender": c.name,
            "tokens/s": round(work.batch * work.context / statistics.median(c.rounds)),
            "ms/step": round(1000 * statistics.median(c.rounds), 1),
            "time vs first": str(Ratio.of("", c, next(iter(contenders.values())))),
            **c.about,
        }
        for c in contenders.values()
    ]
    command = "python -m benchmarks.train_step " + " ".join(sys.argv[1:])
    name = options.name or f"train-{options.workload}-{options.precision}-{options.device}"
    title = f"Training step, {options.workload} ({options.precision}, {options.device})"
    write(name, title, command, list(contenders.values()), rows, ratios, options.device)


def variants(text: str) -> list[tuple[str, str]]:
    """Contender and mode of "name:mode", or of "name" in every mode."""
    name, _, mode = text.partition(":")
    known = (*MODES, "blocks") if name not in PEERS else MODES
    if name not in CONTENDERS or mode not in ("", *known):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected {', '.join(CONTENDERS)}, and :eager or :compiled, or :blocks of one of zoo's"
        )
    return [(name, mode)] if mode else [(name, m) for m in MODES]


def main() -> None:
    """Read the options; a worker measures itself, the parent compares."""
    options = parser(__doc__ or "")
    options.add_argument("--workload", choices=WORKLOADS, default="small")
    options.add_argument("--precision", choices=PRECISIONS, default="f32")
    everything = [variants(name) for name in CONTENDERS]
    options.add_argument("--contenders", type=variants, nargs="+", default=everything, metavar="NAME[:MODE]")
    options.add_argument("--steps", type=int, default=3, help="per turn, besides one to warm up")
    options.add_argument("--worker", action="store_true", help="used by the parent process")
    given = options.parse_args()
    given.contenders = [variant for several in given.contenders for variant in several]
    worker(given) if given.worker else compare(given)


if __name__ == "__main__":
    main()
