"""Does Amos reach AdamW's final loss in fewer steps, on BERT and T5, both with their rates tuned?

The paper says: in at most 70 % of AdamW's steps (Amos, section 5.1). Every variant of
``configs/steps`` is trained at every rate of a grid of its own, equally many for both optimizers,
with seed 0, and at its best rate with more seeds::

    python -m benchmarks.steps --runs runs/steps --jobs 2 \\
        --data 'data.corpus={type: text, paths: [train.txt]}' \\
        --data 'data.validation_corpus={type: text, paths: [valid.txt]}'
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.experiment import Experiment, options, save, spread

TASKS = ("mlm", "span")
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "amos": (5e-3, 1e-2, 2e-2, 4e-2)}


def steps_to(curve: list[tuple[int, float]], loss: float) -> int | None:
    """The first evaluated step whose loss is at most `loss`, or None."""
    return next((step for step, value in curve if value <= loss), None)


def summarise(experiment: Experiment, seeds: range) -> dict[str, Any]:
    """Everything that the page shows, from the run folders."""
    summary: dict[str, Any] = {}
    for task in TASKS:
        best = {o: experiment.best_rate(f"{task}-{o}", rates) for o, rates in RATES.items()}
        curves = {o: [experiment.curve((f"{task}-{o}", best[o], s)) for s in seeds] for o in RATES}
        reached = [steps_to(a, b[-1][1]) for a, b in zip(curves["amos"], curves["adamw"], strict=True)]
        total = curves["adamw"][0][-1][0]
        summary[task] = {
            "rates": {
                o: {f"{lr:g}": experiment.final((f"{task}-{o}", lr, 0)) for lr in rates}
                for o, rates in RATES.items()
            },
            "best": best,
            "final": {o: [curve[-1][1] for curve in curves[o]] for o in RATES},
            "steps": total,
            "amos_steps_to_adamw": reached,
            "share": [None if step is None else step / total for step in reached],
        }
    first = (f"{TASKS[0]}-amos", summary[TASKS[0]]["best"]["amos"], 0)
    return {**summary, "environment": experiment.environment(first)}


def markdown(summary: dict[str, Any]) -> str:
    """The tables of the results page."""
    lines = []
    for task in TASKS:
        t = summary[task]
        lines += [f"### {task}", "", "| optimizer | rates: final validation loss, seed 0 |", "|---|---|"]
        for optimizer, losses in t["rates"].items():
            shown = ", ".join(f"{lr}: {loss:.4f}" for lr, loss in losses.items())
            lines.append(f"| {optimizer} | {shown} |")
        lines += ["", "| optimizer | best rate | final loss by seed | mean ± sd |", "|---|---|---|---|"]
        for optimizer, losses in t["final"].items():
            shown = ", ".join(f"{loss:.4f}" for loss in losses)
            lines.append(f"| {optimizer} | {t['best'][optimizer]:g} | {shown} | {spread(losses)} |")
        shares = ", ".join("not reached" if s is None else f"{s:.0%}" for s in t["share"])
        lines += ["", f"Amos reaches AdamW's final loss after, by seed: {shares} of {t['steps']} steps.", ""]
    return "\n".join(lines)


def plot(experiment: Experiment, summary: dict[str, Any], seeds: range, path: Path) -> None:
    """Sensitivity to the rate, and the curves at the best one."""
    figure, panels = plt.subplots(2, len(TASKS), figsize=(10, 7), constrained_layout=True)
    for task, column in zip(TASKS, panels.T, strict=True):
        t = summary[task]
        for optimizer, colour in (("adamw", "tab:gray"), ("amos", "tab:blue")):
            losses = t["rates"][optimizer]
            column[0].plot(
                [float(lr) for lr in losses], list(losses.values()), "o-", color=colour, label=optimizer
            )
            for seed in seeds:
                run = f"{task}-{optimizer}", t["best"][optimizer], seed
                steps, values = zip(*experiment.curve(run)[1:], strict=True)
                column[1].plot(steps, values, color=colour, label=None if seed else optimizer)
        column[0].set(xscale="log", xlabel="learning rate", ylabel="final validation loss", title=task)
        column[1].set(xlabel="step", ylabel="validation loss")
    save(figure, path)


def main() -> None:
    """Train what is missing, then write the tables, the figure and the numbers."""
    parser = options(__doc__ or "", "steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", action="append", default=[], help="key=value for all runs, repeatable")
    args = parser.parse_args()
    experiment, seeds = Experiment(args.runs, "steps", args.data, args.jobs), range(args.seeds)
    variants = {f"{task}-{o}": rates for task in TASKS for o, rates in RATES.items()}
    experiment.train((v, lr, 0) for v, rates in variants.items() for lr in rates)
    experiment.train((v, experiment.best_rate(v, rates), s) for s in seeds for v, rates in variants.items())
    summary = summarise(experiment, seeds)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "steps.json").write_text(json.dumps(summary, indent=1) + "\n")
    (args.out / "steps-tables.md").write_text(markdown(summary))
    plot(experiment, summary, seeds, args.out / "steps.png")
    print(markdown(summary))


if __name__ == "__main__":
    main()
