"""Run folders as tables of pandas: a row per run with its settings, and a row per record of metrics.jsonl.

With run folders as arguments, those are read. Without, two small runs are made first.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pandas as pd
import yaml

from zoo import load_config
from zoo.train.run import train


def settings(runs: list[Path]) -> pd.DataFrame:
    """The resolved configurations, a row per run: columns `model.type`, `optimizer.lr` and so on."""
    configs = [yaml.safe_load((run / "config.yaml").read_text("utf-8")) for run in runs]
    return pd.json_normalize(configs).set_index("name")


def records(runs: list[Path], kind: str) -> pd.DataFrame:
    """The records of one kind (train, validation, monitor, ...), with the columns `name` and `step`."""
    rows = [
        {"name": run.name, **json.loads(line)}
        for run in runs
        for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    return pd.json_normalize([row for row in rows if row["kind"] == kind])


def main(runs: list[Path]) -> None:
    """Print the settings that differ, the validation losses side by side, and what a step took."""
    table = settings(runs)
    differing = [column for column in table if table[column].astype(str).nunique() > 1]
    print(table[differing].T, end="\n\n")
    validation = records(runs, "validation")
    print(validation.pivot_table("cross_entropy", "step", "name"), end="\n\n")
    training = records(runs, "train")
    print(training.groupby("name")[["loss", "grad_norm", "timing.tokens_per_second"]].median())


def two_runs(folder: Path) -> list[Path]:
    """Train GPT and nGPT for a moment; returns their run folders."""
    shared = ["data.corpus=python-docs", "train.steps=20", "train.eval_every=10", "train.device=cpu"]
    names = ("gpt-tiny", "ngpt-tiny")
    return [train(load_config(name, [*shared, f"train.runs_dir={folder}"])).folder for name in names]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main([Path(argument) for argument in sys.argv[1:]])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(two_runs(Path(temporary)))
