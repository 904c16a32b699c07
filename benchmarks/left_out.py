"""What it costs that an optimizer's step may be left out (`zoo.optim.skip`), for every optimizer.

    python -m benchmarks.left_out

Steps that may be left out and steps that may not are taken in turns, of two models in one process. The
ratio is taken inside a round and shown as the median (min-max) over the rounds; time is the processor's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.harness import RESULTS, described
from zoo import build_model, build_optimizer
from zoo.config.registry import OPTIMIZERS
from zoo.optim.skip import skipped_if
from zoo.utils.atomic import write_text

SIZES: dict[str, Any] = {"vocab_size": 4096, "d_model": 192, "n_layers": 3, "n_heads": 3}
KINDS: dict[str, dict[str, Any]] = {
    **{kind: {"type": kind} for kind in OPTIMIZERS.choices},
    "soap": {"type": "soap", "max_precond_dim": 768},  # the basis of 4096 words would take minutes
    "adamw, fused: false": {"type": "adamw", "fused": False},
    "torch.optim.RMSprop": {"type": "torch.optim.RMSprop"},
}
"""All of the registry, and two of torch whose weights and slots are copied whole."""


def optimizer_of(settings: dict[str, Any]) -> torch.optim.Optimizer:
    """An optimizer after its first step, whose gradients stay as they are."""
    model = build_model("gpt", **SIZES, seed=0)
    optimizer = build_optimizer(model, {"lr": 1e-3, **settings})
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter).mul_(0.01)
    optimizer.step()
    return optimizer


def measured(settings: dict[str, Any], rounds: int, steps: int) -> tuple[float, list[float]]:
    """The median seconds of a step that is always taken, and the ratios of the other one's."""
    optimizers, flags = [optimizer_of(settings) for _ in range(2)], [None, torch.tensor(False)]
    seconds: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            start = time.process_time()
            for _ in range(steps):
                with skipped_if(optimizers[side], flags[side]):
                    optimizers[side].step()
            seconds[side].append((time.process_time() - start) / steps)
    taken, perhaps = (side[1:] for side in seconds)  # the first round warms up
    return statistics.median(taken), [b / a for a, b in zip(taken, perhaps, strict=True)]


def main() -> None:
    """Measure all, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="a multiple of the steps between SOAP's bases")
    given = parser.parse_args()
    size = sum(p.numel() for p in build_model("gpt", **SIZES, device="meta").parameters())
    command = " ".join(["python -m benchmarks.left_out", *sys.argv[1:]])
    what = (
        f"a GPT of {size / 1e6:.1f}M parameters, {given.rounds} rounds of {given.steps} steps, processor time"
    )
    lines = [
        "# Steps that may be left out",
        "",
        f"`{command}`: {what}; {described()}.",
        "",
        "| optimizer | step, ms | one that may be left out, times that |",
        "|---|---|---|",
    ]
    for name, settings in KINDS.items():
        alone, ratios = measured(settings, given.rounds, given.steps)
        middle = statistics.median(ratios)
        lines.append(f"| {name} | {1e3 * alone:.2f} | {middle:.3f} ({min(ratios):.3f}-{max(ratios):.3f}) |")
        print(lines[-1], flush=True)
    write_text(RESULTS / "left-out-cpu.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
