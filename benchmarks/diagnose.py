"""What measuring while training costs: a step with the monitors at their default intervals over one without.

    python -m benchmarks.diagnose

In one process, stretches of 200 steps with and without follow each other in the order on, off, off, on, ...;
200 steps hold two measurements of every matrix (`monitor_every` 100) and one of every variable with its
window of 100 gradients (`diagnose_every` 200). A ratio is taken between neighbours, of the seconds that the
process computed: others on the machine do not count.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from benchmarks.harness import RESULTS, machine, parser, table
from zoo import build_model, build_optimizer
from zoo.init import Registry
from zoo.train.config import TrainConfig
from zoo.train.diagnosis import Diagnosis
from zoo.train.distributed import World
from zoo.train.monitor import Monitor
from zoo.train.step import Stepper

DEFAULT = TrainConfig(steps=1, batch_size=1)
SIZES: dict[str, dict[str, int]] = {
    "0.2 M parameters, 512 tokens": {"d_model": 64, "n_layers": 2, "batch": 8, "time": 64},
    "1.1 M parameters, 1,024 tokens": {"d_model": 128, "n_layers": 3, "batch": 8, "time": 128},
}


class Training:
    """A model that is trained on the same batch again and again, measured or not."""

    def __init__(self, sizes: dict[str, int], optimizer: str, measured: bool) -> None:
        fields: dict[str, Any] = {key: sizes[key] for key in ("d_model", "n_layers")}
        model = build_model("gpt", vocab_size=1024, n_heads=4, **fields, seed=0)
        built = build_optimizer(model, optimizer, lr=1e-3)
        world = World(0, 1, torch.device("cpu"))
        self.batch = model.example(sizes["batch"], sizes["time"])
        self.registry = Registry(model)
        self.stepper = Stepper(model, model.loss, built, world, 1, "fp32", 1.0, 0.0)
        self.monitor_every, diagnose = (
            (DEFAULT.monitor_every, DEFAULT.diagnose_every) if measured else (None, None)
        )
        self.diagnosis = Diagnosis(self.registry, built, world, diagnose, steps=10**9)

    def stretch(self, steps: int) -> float:
        """Seconds of so many steps."""
        start = time.process_time()
        for step in range(1, steps + 1):
            every = self.monitor_every
            monitor = Monitor(self.registry) if every and step % every == 0 else None
            self.diagnosis.begin(step)
            self.stepper(self.batch, lambda: False)
            if monitor is not None:
                monitor.measure()
            if self.diagnosis.due:
                self.diagnosis.measure()
        return time.process_time() - start


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--optimizer", default="amos")
    settings = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name, sizes in SIZES.items():
        sides = {on: Training(sizes, settings.optimizer, on) for on in (True, False)}
        for side in sides.values():
            side.stretch(20)
        ratios, seconds = [], []
        for number in range(settings.rounds):
            times = {on: sides[on].stretch(settings.steps) for on in (number % 2 == 0, number % 2 == 1)}
            ratios.append(times[True] / times[False])
            seconds.append(times[False] / settings.steps)
        low, high = min(ratios), max(ratios)
        rows.append(
            {
                "model and batch": name,
                "ms per step": f"{1e3 * statistics.median(seconds):.1f}",
                "with / without, median (min-max)": f"{statistics.median(ratios):.4f} ({low:.4f}-{high:.4f})",
            }
        )
        print(rows[-1], flush=True)
    command = f"python -m benchmarks.diagnose --rounds {settings.rounds} --optimizer {settings.optimizer}"
    facts = ", ".join(f"{key} {value}" for key, value in machine().items())
    page = "\n\n".join(("# The cost of measuring while training", f"`{command}`", facts, table(rows)))
    (RESULTS / f"{settings.name or 'diagnose'}.md").write_text(page + "\n")


if __name__ == "__main__":
    main()
