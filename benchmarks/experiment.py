"""Training runs of an experiment: started once, reused when finished, resumed when interrupted."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]

Run = tuple[str, float, int]
"""Variant, learning rate, seed."""


@dataclass(frozen=True)
class Experiment:
    """Variants, each a config, trained at learning rates with seeds.

    Attributes:
        runs: folder of the run folders.
        configs: folder of the variants' configs, below ``configs``.
        overrides: ``key=value`` for all runs, for instance where the data is.
        jobs: runs at a time, one thread each.
        of_variant: more overrides, for the runs of one variant.
    """

    runs: Path
    configs: str
    overrides: Sequence[str] = ()
    jobs: int = os.cpu_count() or 1
    of_variant: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def folder(self, run: Run) -> Path:
        """The folder of one run."""
        variant, lr, seed = run
        return self.runs / f"{variant}-lr{lr:g}-seed{seed}"

    def train(self, runs: Iterable[Run]) -> None:
        """Train what is not finished; a diverged run counts as infinite loss.

        Raises:
            RuntimeError: a run that failed for another reason.
        """
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(self._train, runs))

    def _train(self, run: Run) -> None:
        folder, (variant, lr, seed) = self.folder(run), run
        if (folder / "finished").exists():
            return
        command = [
            sys.executable,
            "-m",
            "zoo",
            "train",
            str(ROOT / "configs" / self.configs / f"{variant}.yaml"),
        ]
        command += [
            f"optimizer.lr={lr}",
            f"seed={seed}",
            f"name={folder.name}",
            f"train.runs_dir={self.runs}",
        ]
        command += [*self.overrides, *self.of_variant.get(variant, ())]
        if folder.exists():
            command.append("--resume")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
        (folder / "finished").write_text("diverged\n" if done.returncode else "ok\n")
        print(f"{folder.name}: {self.final(run):.4f}", flush=True)

    def records(self, run: Run, kind: str) -> list[dict[str, Any]]:
        """What a run logged of one kind, see `zoo.train.metrics`."""
        lines = (self.folder(run) / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def curve(self, run: Run) -> list[tuple[int, float]]:
        """(step, validation cross entropy) of one run."""
        return [(r["step"], r["cross_entropy"]) for r in self.records(run, "validation")]

    def final(self, run: Run) -> float:
        """Final validation cross entropy in nats per target; infinite if the run diverged."""
        if (self.folder(run) / "finished").read_text() == "diverged\n":
            return math.inf
        return self.curve(run)[-1][1]

    def best_rate(self, variant: str, rates: Sequence[float]) -> float:
        """The learning rate with the lowest final loss of seed 0."""
        return min(rates, key=lambda lr: self.final((variant, lr, 0)))

    def environment(self, run: Run) -> dict[str, Any]:
        """Versions and machine of a run."""
        first: dict[str, Any] = json.loads((self.folder(run) / "environment.json").read_text())[0]
        return {key: value for key, value in first.items() if key != "command"}


def options(description: str, runs: str) -> argparse.ArgumentParser:
    """The options that all experiments share.

    Args:
        description: the experiment's.
        runs: name of its folder below ``runs``.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs") / runs)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, one thread each"
    )
    return parser


def save(figure: Figure, path: Path) -> None:
    """Write a figure with a legend in each of its panels."""
    for panel in figure.axes:
        panel.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{mean(values):.4f} ± {stdev(values):.4f}" if len(values) > 1 else f"{values[0]:.4f}"
