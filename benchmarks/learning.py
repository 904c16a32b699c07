"""Do nGPT and WeSaR learn faster than their baselines, each with its learning rate tuned?

Every variant of ``configs/learning`` is trained at every rate of one grid with seed 0; the rate with
the lowest final validation loss is then trained with two more seeds. Finished runs are reused, so
an interrupted experiment goes on where it was::

    python benchmarks/learning.py --runs runs/learning --jobs 2 --out docs/results
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = ("gpt", "ngpt", "small", "wesar")
PAIRS = (("ngpt", "gpt"), ("wesar", "small"))
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 6e-3, 1.2e-2, 2e-2)
SEEDS = (0, 1, 2)


def run_name(variant: str, lr: float, seed: int) -> str:
    """The folder of one run."""
    return f"{variant}-lr{lr:g}-seed{seed}"


def train(runs: Path, variant: str, lr: float, seed: int) -> None:
    """Train one run with one thread, unless it is finished; a diverged run counts as infinite loss."""
    folder = runs / run_name(variant, lr, seed)
    if (folder / "finished").exists():
        return
    command = [sys.executable, "-m", "zoo", "train", str(ROOT / "configs" / "learning" / f"{variant}.yaml")]
    command += [f"optimizer.lr={lr}", f"seed={seed}", f"name={folder.name}", f"train.runs_dir={runs}"]
    if folder.exists():
        command.append("--resume")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
    (folder / "finished").write_text("diverged\n" if done.returncode else "ok\n")
    print(f"{folder.name}: {final(runs, variant, lr, seed):.4f}", flush=True)


def curve(runs: Path, variant: str, lr: float, seed: int) -> list[tuple[int, float]]:
    """(tokens, validation cross entropy) of one run."""
    folder = runs / run_name(variant, lr, seed)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tokens = {0: 0} | {line["step"]: line["tokens"] for line in lines if line["kind"] == "train"}
    return [(tokens[x["step"]], x["cross_entropy"]) for x in lines if x["kind"] == "validation"]


def final(runs: Path, variant: str, lr: float, seed: int) -> float:
    """Final validation cross entropy in nats per byte; infinite if the run diverged."""
    if (runs / run_name(variant, lr, seed) / "finished").read_text() == "diverged\n":
        return math.inf
    return curve(runs, variant, lr, seed)[-1][1]


def best_rate(runs: Path, variant: str) -> float:
    """The learning rate with the lowest final loss of seed 0."""
    return min(RATES, key=lambda lr: final(runs, variant, lr, 0))


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def summarise(runs: Path, best: dict[str, float]) -> dict[str, Any]:
    """Everything that the page shows, from the run folders."""
    first = json.loads((runs / run_name("gpt", best["gpt"], 0) / "environment.json").read_text())[0]
    return {
        "rates": {v: {f"{lr:g}": final(runs, v, lr, 0) for lr in RATES} for v in VARIANTS},
        "best": {v: best[v] for v in VARIANTS},
        "seeds": {v: [final(runs, v, best[v], seed) for seed in SEEDS] for v in VARIANTS},
        "environment": {key: value for key, value in first.items() if key != "command"},
    }


def markdown(summary: dict[str, Any]) -> str:
    """The results page."""
    lines = ["| learning rate | " + " | ".join(VARIANTS) + " |", "|---|" + "---|" * len(VARIANTS)]
    for lr in RATES:
        cells = []
        for variant in VARIANTS:
            loss = summary["rates"][variant][f"{lr:g}"]
            bold = "**" if summary["best"][variant] == lr else ""
            cells.append(f"{bold}{loss:.4f}{bold}")
        lines.append(f"| {lr:g} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| variant | learning rate | validation loss, three seeds | mean ± sd |",
        "|---|---|---|---|",
    ]
    for variant in VARIANTS:
        values = summary["seeds"][variant]
        shown = ", ".join(f"{v:.4f}" for v in values)
        lines.append(f"| {variant} | {summary['best'][variant]:g} | {shown} | {spread(values)} |")
    lines += ["", "| comparison | difference by seed | mean ± sd |", "|---|---|---|"]
    for method, baseline in PAIRS:
        differences = [
            a - b for a, b in zip(summary["seeds"][method], summary["seeds"][baseline], strict=True)
        ]
        shown = ", ".join(f"{d:+.4f}" for d in differences)
        lines.append(f"| {method} - {baseline} | {shown} | {spread(differences)} |")
    return "\n".join(lines) + "\n"


def plot(runs: Path, summary: dict[str, Any], path: Path) -> None:
    """Sensitivity to the learning rate, and the curves of all seeds at the best one."""
    figure, panels = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    for row, (method, baseline) in zip(panels, PAIRS, strict=True):
        for variant, colour in ((baseline, "tab:gray"), (method, "tab:blue")):
            losses = summary["rates"][variant]
            row[0].plot(RATES, [losses[f"{lr:g}"] for lr in RATES], "o-", color=colour, label=variant)
            for seed in SEEDS:
                tokens, values = zip(*curve(runs, variant, summary["best"][variant], seed)[1:], strict=True)
                row[1].plot(tokens, values, color=colour, label=variant if seed == 0 else None)
        row[0].set(xscale="log", xlabel="learning rate", ylabel="final validation loss (nats per byte)")
        row[1].set(xlabel="tokens", ylabel="validation loss", title="three seeds at the best rate")
        for panel in row:
            panel.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Train what is missing, then write the page, its figure and its numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, one thread each"
    )
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda job: train(args.runs, *job), [(v, lr, 0) for lr in RATES for v in VARIANTS]))
        best = {v: best_rate(args.runs, v) for v in VARIANTS}
        list(pool.map(lambda job: train(args.runs, *job), [(v, best[v], s) for s in SEEDS for v in VARIANTS]))
    summary = summarise(args.runs, best)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "learning.json").write_text(json.dumps(summary, indent=1) + "\n")
    (args.out / "learning-tables.md").write_text(markdown(summary))
    plot(args.runs, summary, args.out / "learning.png")
    print(markdown(summary))


if __name__ == "__main__":
    main()
