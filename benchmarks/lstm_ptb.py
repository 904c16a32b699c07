"""Does Amos give a single-layer LSTM a better perplexity on the Penn Treebank than AdamW and Adam?

The paper says so, at equal training loss, because it keeps the scale M2 of the kernel at eta (Amos,
section 5.2 and Figure 4). The three configs ``lstm-ptb-*`` are trained with the same seeds, then
evaluated as the literature does: batch 1, state carried, every token once. Finished runs are reused::

    python -m benchmarks.lstm_ptb --ptb FOLDER --runs runs/lstm-ptb --seeds 1 --set train.steps=1000

FOLDER holds ptb.train.txt, ptb.valid.txt and ptb.test.txt, which are not free and not part of zoo.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from benchmarks.experiment import Experiment, Run, options, save, spread
from zoo import load_model
from zoo.data.dataset import BatchSpec
from zoo.data.text.dataset import TextData
from zoo.run.config import load_config

RATES = {"lstm-ptb-amos": 1e-2, "lstm-ptb-adamw": 1.5e-3, "lstm-ptb-adam": 1.5e-3}
"""The paper's."""

KERNEL = "lstm.weight"


@torch.no_grad()
def perplexity(folder: Path, text: Path) -> float:
    """Of the last checkpoint of a run, over every line of a text."""
    config = load_config(folder, [f"data.validation_corpus.paths={json.dumps([str(text)])}"])
    assert isinstance(config.data, TextData)
    model = load_model(folder).eval()
    batches = config.data.prepare(model.config).validation_batches(BatchSpec(0, 0, 1), max_batches=2**40)
    assert batches is not None
    (batch,) = batches
    cross_entropy: Tensor = model.loss(*batch).cross_entropy
    return math.exp(cross_entropy.item())


def scales(experiment: Experiment, run: Run) -> list[tuple[int, float]]:
    """(step, M2 of the kernel)."""
    return [(r["step"], r["matrices"][KERNEL]["m2"]) for r in experiment.records(run, "monitor")]


def training_loss(experiment: Experiment, run: Run, last: int) -> float:
    """Mean training cross entropy, dropout included, of the last logged steps."""
    value: float = mean(r["cross_entropy"] for r in experiment.records(run, "train")[-last:])
    return value


def summarise(experiment: Experiment, runs: list[Run], ptb: Path) -> dict[str, Any]:
    """Everything that the page shows, from the run folders."""
    rows = [
        {
            "variant": run[0],
            "lr": run[1],
            "seed": run[2],
            "training_loss": training_loss(experiment, run, last=10),
            "valid": perplexity(experiment.folder(run), ptb / "ptb.valid.txt"),
            "test": perplexity(experiment.folder(run), ptb / "ptb.test.txt"),
            "kernel_m2": scales(experiment, run),
            "curve": experiment.curve(run),
        }
        for run in runs
    ]
    monitored = experiment.records(runs[0], "monitor")[-1]["matrices"][KERNEL]
    last = experiment.records(runs[0], "train")[-1]
    return {
        "runs": rows,
        "eta": monitored["eta"],
        "steps": last["step"],
        "tokens": last["tokens"],
        "overrides": list(experiment.overrides),
        "environment": experiment.environment(runs[0]),
    }


def markdown(summary: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "| config | lr | training loss | validation perplexity | test perplexity | M2 of the kernel |",
        "|---|---|---|---|---|---|",
    ]
    for variant, lr in RATES.items():
        rows = [row for row in summary["runs"] if row["variant"] == variant]
        loss, valid, test = ([row[key] for row in rows] for key in ("training_loss", "valid", "test"))
        first, last = (mean(row["kernel_m2"][i][1] for row in rows) for i in (0, -1))
        scale = f"{first:.4f} to {last:.4f}"
        lines.append(f"| {variant} | {lr:g} | {spread(loss)} | {spread(valid)} | {spread(test)} | {scale} |")
    return "\n".join(lines) + "\n"


def plot(summary: dict[str, Any], path: Path) -> None:
    """Validation loss and the kernel's M2 over time (the paper's Figure 4)."""
    figure, (loss, scale) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    colours = dict(zip(RATES, ("tab:blue", "tab:orange", "tab:gray"), strict=True))
    for row in summary["runs"]:
        style = {"color": colours[row["variant"]], "label": row["variant"] if row["seed"] == 0 else None}
        loss.plot(*zip(*row["curve"][1:], strict=True), **style)
        scale.plot(*zip(*row["kernel_m2"], strict=True), **style)
    scale.axhline(summary["eta"], color="black", linestyle=":", label="eta")
    loss.set(xlabel="step", ylabel="validation loss (nats per token)")
    scale.set(xlabel="step", ylabel="M2 of the LSTM kernel")
    save(figure, path)


def main() -> None:
    """Train what is missing, then write the table, the figure and the numbers."""
    parser = options(__doc__ or "", "lstm-ptb")
    parser.set_defaults(jobs=1)
    parser.add_argument("--ptb", type=Path, required=True, help="folder of ptb.*.txt")
    parser.add_argument("--page", default="lstm-ptb", help="what the files in --out are called")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of all configs")
    args = parser.parse_args()
    data = {"corpus": "train", "validation_corpus": "valid"}
    paths = [f"data.{k}.paths={json.dumps([str(args.ptb / f'ptb.{v}.txt')])}" for k, v in data.items()]
    experiment = Experiment(args.runs, ".", [*paths, *args.set], args.jobs)
    runs = [(variant, lr, seed) for seed in range(args.seeds) for variant, lr in RATES.items()]
    experiment.train(runs)
    summary = summarise(experiment, runs, args.ptb)
    summary["overrides"] = args.set  # the paths are this machine's
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.page}.json").write_text(json.dumps(summary) + "\n")
    (args.out / f"{args.page}-tables.md").write_text(markdown(summary))
    plot(summary, args.out / f"{args.page}.png")
    print(markdown(summary))


if __name__ == "__main__":
    main()
