"""What measuring while training costs, as a share of the training steps, at the default intervals.

    python -m benchmarks.diagnose

One process takes turns: a training step, taking in a step's gradients (in the window of 100 steps before
each of `diagnose_every`), the measurement of every variable that follows, and the monitor's of every matrix,
with its copy. The share of a kind of line is what it takes in the steps between two of them, over these
steps. Seconds are those that the process computed: others on the machine do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import RESULTS, described, parser, table
from zoo import build_model, build_optimizer
from zoo.init import Registry
from zoo.optim.clip import Clip
from zoo.run.train_config import TrainConfig
from zoo.train.diagnosis import WINDOW, Diagnosis
from zoo.train.distributed import World
from zoo.train.gradients import GradientAverages
from zoo.train.monitor import Monitor
from zoo.train.step import Stepper

DEFAULT = TrainConfig(steps=1, batch_size=1)
SIZES: list[dict[str, int]] = [
    {"d_model": 64, "n_layers": 2, "batch": 8, "time": 64},
    {"d_model": 128, "n_layers": 3, "batch": 8, "time": 128},
    {"d_model": 320, "n_layers": 5, "batch": 4, "time": 128},
]


class Sides:
    """A model that is trained on the same batch again and again, and what measuring it takes."""

    def __init__(self, sizes: dict[str, int], optimizer: str) -> None:
        fields: dict[str, Any] = {key: sizes[key] for key in ("d_model", "n_layers")}
        model = build_model("gpt", vocab_size=1024, n_heads=4, **fields, seed=0)
        built, world = build_optimizer(model, optimizer, lr=1e-3), World(0, 1, torch.device("cpu"))
        self.batch = model.example(sizes["batch"], sizes["time"])
        self.registry = Registry(model)
        self.stepper = Stepper(model, model.loss, built, world, 1, "fp32", Clip(1.0), 0.0)
        self.diagnosis = Diagnosis(self.registry, built, world, None, steps=1)
        self.averages = GradientAverages(self.registry, world)
        self.gradients = [torch.randn_like(entry.parameter) for entry in self.registry]
        self.take_in()  # makes the averages

    def step(self) -> None:
        """A training step."""
        self.stepper.update(self.stepper.gradient(self.batch, lambda: False))
        for entry, gradient in zip(self.registry, self.gradients, strict=True):
            entry.parameter.grad = gradient

    def take_in(self) -> None:
        """One of the window's gradients; called after a step, when caches hold other things."""
        self.averages.add()

    def diagnose(self) -> None:
        """The measurement that ends a window."""
        self.averages.ratios()
        self.diagnosis.measure()

    def monitor(self) -> None:
        """The monitor's copy and measurements."""
        monitor = Monitor(self.registry)
        monitor.see_gradient()
        monitor.measure()


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(rounds=25)
    options.add_argument("--optimizer", default="amos")
    settings = options.parse_args()
    rows: list[dict[str, Any]] = []
    for sizes in SIZES:
        sides = Sides(sizes, settings.optimizer)
        parts = {
            "step": sides.step,
            "take_in": sides.take_in,
            "diagnose": sides.diagnose,
            "monitor": sides.monitor,
        }
        taken: dict[str, list[float]] = {part: [] for part in parts}
        for _ in range(settings.rounds):
            for part, work in parts.items():
                taken[part].append(seconds(work))
        step, take_in, diagnose, monitor = (1e3 * statistics.median(taken[part]) for part in parts)
        assert DEFAULT.diagnose_every is not None and DEFAULT.monitor_every is not None
        diagnoses = (WINDOW * take_in + diagnose) / (DEFAULT.diagnose_every * step)
        monitors = monitor / (DEFAULT.monitor_every * step)
        rows.append(
            {
                "parameters": f"{sum(entry.spec.numel for entry in sides.registry):,}",
                "tokens of a batch": f"{sizes['batch'] * sizes['time']:,}",
                "training step, ms": f"{step:.1f}",
                "a gradient, ms": f"{take_in:.2f}",
                "diagnose, ms": f"{diagnose:.2f}",
                "monitor, ms": f"{monitor:.2f}",
                "diagnose lines, share of the training": f"{diagnoses:.2%}",
                "monitor lines": f"{monitors:.2%}",
            }
        )
        print(rows[-1], flush=True)
    command = f"python -m benchmarks.diagnose --rounds {settings.rounds} --optimizer {settings.optimizer}"
    facts = described()
    about = (
        f"Medians of {settings.rounds} turns, of a GPT on the CPU. `diagnose` every {DEFAULT.diagnose_every} "
        f"steps with gradients of {WINDOW} steps, `monitor` every {DEFAULT.monitor_every}. The share falls "
        "with the tokens of a batch."
    )
    page = "\n\n".join(("# The cost of measuring while training", f"`{command}`", facts, table(rows), about))
    (RESULTS / f"{settings.name or 'diagnose'}.md").write_text(page + "\n")


if __name__ == "__main__":
    main()
