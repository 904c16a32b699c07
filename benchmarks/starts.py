"""The runs of docs/results/ngpt-starts.md that were trained one by one: their lines in a CSV, and the table.

    zoo train configs/sweeps/study/base.yaml name=SIZE.START.SEED.RATE train.runs_dir=RUNS ...
    python -m benchmarks.starts docs/results/ngpt-starts/runs.csv RUNS

A run is named by its size, start, seed and learning rate. Every finished run becomes a line; lines of runs
whose folders are gone are kept. Seeds from 5 on tune: the rate of a side is the one with the lowest mean over
those seeds that all its rates have; a side with a single rate was not tuned. Sides are compared over seeds
that both have.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from zoo.ablate.statistics import paired_t_test
from zoo.utils.run_folder import RunFolder

COLUMNS = ("size", "start", "seed", "lr", "final_loss")
FIRST_TUNING_SEED = 5
BASELINE = "paper"

Losses = dict[tuple[str, str, int, float], float]
"""Final validation loss by size, start, seed and learning rate."""


def read_lines(file: Path) -> Losses:
    """The lines of the CSV; {} if there is none yet."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        return {
            (row["size"], row["start"], int(row["seed"]), float(row["lr"])): float(row["final_loss"])
            for row in csv.DictReader(lines)
        }


def read_runs(folder: Path) -> Losses:
    """The finished runs of a folder of runs."""
    losses: Losses = {}
    for run in sorted(folder.iterdir()):
        size, start, seed, lr = run.name.split(".", 3)
        records = RunFolder(run).read_metrics()
        done = max((r["step"] for r in records if r["kind"] == "train"), default=0)
        final = [r for r in records if r["kind"] == "validation" and r["step"] == done > 0]
        if final and RunFolder(run).checkpoint() is not None:
            losses[size, start, int(seed), float(lr)] = final[-1]["cross_entropy"]
    return losses


def tuned_rate(runs: dict[tuple[int, float], float]) -> float:
    """The learning rate of a side: the best over the tuning seeds that all its tuned rates share."""
    seeds: dict[float, set[int]] = defaultdict(set)
    for seed, lr in runs:
        if seed >= FIRST_TUNING_SEED:
            seeds[lr].add(seed)
    shared = set.intersection(*seeds.values()) if seeds else set()
    if not shared:
        return max(lr for _, lr in runs)
    return min(seeds, key=lambda lr: mean(runs[seed, lr] for seed in shared))


def table(losses: Losses) -> str:
    """A row for each size and start, in Markdown."""
    sides: dict[tuple[str, str], dict[tuple[int, float], float]] = defaultdict(dict)
    for (size, start, seed, lr), loss in losses.items():
        sides[size, start][seed, lr] = loss
    finals = {}
    for side, runs in sides.items():
        rate = tuned_rate(runs)
        finals[side] = rate, {s: x for (s, lr), x in runs.items() if lr == rate and s < FIRST_TUNING_SEED}
    rows = [
        "| size | start | rates tried | rate | seeds | final loss | difference from the paper's start |",
        "|---|---|---|---|---|---|---|",
    ]
    for (size, start), (rate, found) in sorted(finals.items()):
        _, base = finals.get((size, BASELINE), (rate, {}))
        pairs = sorted(found.keys() & base.keys())
        difference = ""
        if start != BASELINE and len(pairs) > 1:
            test = paired_t_test([found[s] for s in pairs], [base[s] for s in pairs], 0.05)
            difference = f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}), p {test.p:.2g}"
        elif start != BASELINE and pairs:
            difference = f"{found[pairs[0]] - base[pairs[0]]:+.3f}"
        tried = ", ".join(f"{lr:g}" for lr in sorted({lr for _, lr in sides[size, start]}))
        sd = f" ± {stdev(found.values()):.3f}" if len(found) > 1 else ""
        final = f"{mean(found.values()):.3f}{sd}" if found else ""
        rows.append(f"| {size} | {start} | {tried} | {rate:g} | {len(found)} | {final} | {difference} |")
    return "\n".join(rows)


def main() -> None:
    """Update the CSV and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("csv", type=Path)
    parser.add_argument("runs", type=Path, nargs="?", help="the folder of the runs; none: only print")
    given = parser.parse_args()
    losses = read_lines(given.csv)
    if given.runs is not None:
        losses |= read_runs(given.runs)
    with given.csv.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows((*key[:3], f"{key[3]:g}", f"{loss:.4f}") for key, loss in sorted(losses.items()))
    print(table(losses))


if __name__ == "__main__":
    main()
