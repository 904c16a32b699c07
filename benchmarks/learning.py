"""Do nGPT and WeSaR learn faster than their baselines, each with its learning rate tuned?

Every variant of ``configs/learning`` is trained at every rate of one grid with seed 0; the rate with
the lowest final validation loss is then trained with two more seeds. Finished runs are reused, so
an interrupted experiment goes on where it was::

    python -m benchmarks.learning --runs runs/learning --jobs 2 --out docs/results
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.experiment import Experiment, options, save, spread

VARIANTS = ("gpt", "ngpt", "small", "wesar")
PAIRS = (("ngpt", "gpt"), ("wesar", "small"))
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 6e-3, 1.2e-2, 2e-2)
SEEDS = (0, 1, 2)


def summarise(experiment: Experiment, best: dict[str, float]) -> dict[str, Any]:
    """Everything that the page shows, from the run folders."""
    final = experiment.final
    return {
        "rates": {v: {f"{lr:g}": final((v, lr, 0)) for lr in RATES} for v in VARIANTS},
        "best": {v: best[v] for v in VARIANTS},
        "seeds": {v: [final((v, best[v], seed)) for seed in SEEDS] for v in VARIANTS},
        "environment": experiment.environment(("gpt", best["gpt"], 0)),
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


def plot(experiment: Experiment, summary: dict[str, Any], path: Path) -> None:
    """Sensitivity to the learning rate, and the curves of all seeds at the best one."""
    figure, panels = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    for row, (method, baseline) in zip(panels, PAIRS, strict=True):
        for variant, colour in ((baseline, "tab:gray"), (method, "tab:blue")):
            losses = summary["rates"][variant]
            row[0].plot(RATES, [losses[f"{lr:g}"] for lr in RATES], "o-", color=colour, label=variant)
            for seed in SEEDS:
                run = variant, summary["best"][variant], seed
                steps, values = zip(*experiment.curve(run)[1:], strict=True)
                row[1].plot(steps, values, color=colour, label=variant if seed == 0 else None)
        row[0].set(xscale="log", xlabel="learning rate", ylabel="final validation loss (nats per byte)")
        row[1].set(xlabel="step", ylabel="validation loss", title="three seeds at the best rate")
    save(figure, path)


def main() -> None:
    """Train what is missing, then write the page, its figure and its numbers."""
    args = options(__doc__ or "", "learning").parse_args()
    experiment = Experiment(args.runs, "learning", jobs=args.jobs)
    experiment.train((v, lr, 0) for lr in RATES for v in VARIANTS)
    best = {v: experiment.best_rate(v, RATES) for v in VARIANTS}
    experiment.train((v, best[v], s) for s in SEEDS for v in VARIANTS)
    summary = summarise(experiment, best)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "learning.json").write_text(json.dumps(summary, indent=1) + "\n")
    (args.out / "learning-tables.md").write_text(markdown(summary))
    plot(experiment, summary, args.out / "learning.png")
    print(markdown(summary))


if __name__ == "__main__":
    main()
