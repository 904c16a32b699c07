"""Does pre-training on real text help a classifier? SST-2, from scratch, from a checkpoint, with LoRA.

A small causal model is pre-trained on text. Then the same classifier is trained on equally many phrases
from scratch and from that checkpoint, wholly and with LoRA, each side at every rate of a grid with seed 0;
the rate with the best accuracy on phrases of `dev.tsv` is trained with more seeds. What counts is the
accuracy on `test.tsv`, which nothing is chosen by. Finished runs are reused::

    python -m benchmarks.sst2 --runs runs/sst2 --jobs 2 --task sst2 --text train.txt war_and_peace.txt
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.experiment import Experiment, Run, options, spread
from zoo.evaluation.text_classifier import TextClassifier

PRETRAIN: Run = ("pretrain", 2e-3, 0)
RATES = {
    "scratch": (1e-4, 3e-4, 1e-3, 3e-3),
    "pretrained": (1e-4, 3e-4, 1e-3, 3e-3),
    "lora": (3e-4, 1e-3, 3e-3, 1e-2),
}
"""Equally many for each side; LoRA's change starts at zero and wants larger ones."""
MEASURES = ("accuracy", "f1", "matthews", "cross_entropy")


def lower(files: list[Path], folder: Path) -> list[Path]:
    """Copies of text files in lower case, as the reviews are.

    Args:
        files: UTF-8.
        folder: gets the copies, numbered so that equal names do not meet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for number, file in enumerate(files):
        copies.append(folder / f"{number}-{file.name}")
        copies[-1].write_text(file.read_text(encoding="utf-8").lower(), encoding="utf-8")
    return copies


def best_dev(experiment: Experiment, run: Run) -> float:
    """Accuracy of the checkpoint that was kept, on the phrases of dev."""
    return max(float(line["accuracy"]) for line in experiment.records(run, "validation") if line["step"])


def best_rate(experiment: Experiment, variant: str) -> float:
    """The rate of the best accuracy on dev, seed 0."""
    return max(RATES[variant], key=lambda lr: best_dev(experiment, (variant, lr, 0)))


def tested(experiment: Experiment, run: Run, test: Path) -> dict[str, float]:
    """All measures of the checkpoint that was kept, on the test file."""
    evaluation = TextClassifier.load(experiment.folder(run).resolve(), "best", "cpu").score(test).evaluation
    return {measure: getattr(evaluation, measure) for measure in MEASURES}


def summarise(experiment: Experiment, seeds: range, test: Path) -> dict[str, Any]:
    """Everything that the page shows, from the run folders."""
    best = {v: best_rate(experiment, v) for v in RATES}
    sizes = {v: experiment.records((v, best[v], 0), "size")[0]["parameters"] for v in RATES}
    return {
        "pretraining": experiment.curve(PRETRAIN),
        "rates": {v: {f"{lr:g}": best_dev(experiment, (v, lr, 0)) for lr in RATES[v]} for v in RATES},
        "best": best,
        "trained": sizes,
        "dev": {v: [best_dev(experiment, (v, best[v], s)) for s in seeds] for v in RATES},
        "test": {v: [tested(experiment, (v, best[v], s), test) for s in seeds] for v in RATES},
        "environment": experiment.environment(("pretrained", best["pretrained"], 0)),
    }


def markdown(summary: dict[str, Any]) -> str:
    """The tables of the results page."""
    step, loss = summary["pretraining"][-1]
    lines = [
        f"Pre-training: {loss:.4f} nats per token of held-out text after {step} steps.",
        "",
        "| variant | trained parameters | rates: accuracy on dev, seed 0 |",
        "|---|---|---|",
    ]
    for variant, rates in summary["rates"].items():
        shown = ", ".join(f"{lr}: {value:.4f}" for lr, value in rates.items())
        lines.append(f"| {variant} | {summary['trained'][variant]:,} | {shown} |")
    lines += ["", "| variant | rate | test accuracy by seed | mean ± sd | F1 | Matthews | cross entropy |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for variant, found in summary["test"].items():
        columns = {m: [one[m] for one in found] for m in MEASURES}
        shown = ", ".join(f"{value:.4f}" for value in columns["accuracy"])
        spreads = " | ".join(spread(columns[m]) for m in MEASURES)
        lines.append(f"| {variant} | {summary['best'][variant]:g} | {shown} | {spreads} |")
    lines += ["", "| comparison | difference of test accuracy by seed | mean ± sd |", "|---|---|---|"]
    scratch = [one["accuracy"] for one in summary["test"]["scratch"]]
    for variant in ("pretrained", "lora"):
        own = [one["accuracy"] for one in summary["test"][variant]]
        differences = [a - b for a, b in zip(own, scratch, strict=True)]
        shown = ", ".join(f"{d:+.4f}" for d in differences)
        lines.append(f"| {variant} - scratch | {shown} | {spread(differences)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is missing, then write the tables and the numbers."""
    parser = options(__doc__ or "", "sst2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", type=Path, required=True, help="folder of train.tsv, dev.tsv, test.tsv")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text to pre-train on")
    args = parser.parse_args()
    runs, task = args.runs.resolve(), args.task.resolve()
    files = [f"data.train={task / 'train.tsv'}", f"data.validation={task / 'dev.tsv'}"]
    before = Experiment(runs, "sst2", jobs=args.jobs).folder(PRETRAIN)
    corpus = ", ".join(f"'{copy}'" for copy in lower(args.text, runs / "text"))
    trunk = [*files, f"model.trunk.from={before}"]
    experiment = Experiment(
        runs,
        "sst2",
        jobs=args.jobs,
        of_variant={
            "pretrain": [f"data.corpus.paths=[{corpus}]"],
            "scratch": [*files, f"data.tokenizer={{type: saved, path: {before}}}"],
            "pretrained": trunk,
            "lora": trunk,
        },
    )
    seeds = range(args.seeds)
    experiment.train([PRETRAIN])
    for variants in (("scratch", "pretrained"), ("lora",)):
        experiment.train(
            (v, lr, 0)
            for rates in zip(*(RATES[v] for v in variants), strict=True)
            for v, lr in zip(variants, rates, strict=True)
        )
        experiment.train((v, best_rate(experiment, v), s) for s in seeds for v in variants)
    summary = summarise(experiment, seeds, task / "test.tsv")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "sst2.json").write_text(json.dumps(summary, indent=1) + "\n")
    (args.out / "sst2-tables.md").write_text(markdown(summary))
    print(markdown(summary))


if __name__ == "__main__":
    main()
