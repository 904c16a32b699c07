"""`make demo`: its sweep compares at rates that committed sweeps chose, and make runs what it says."""

import csv
import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from zoo.ablate.plan import Planner
from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config

ROOT = Path(__file__).parent.parent
SWEEP = ROOT / "configs" / "sweeps" / "demo.yaml"
CHOSEN_IN = {
    "gpt": ("ngpt-starts/base.csv", "start=gpt-small"),
    "ngpt": ("ngpt-starts/base.csv", "start=both"),
    "wesar": ("study/e-matrix.csv", "model=gpt,method=wesar,optimizer=adamw"),
    "gpt-amos": ("study/e-matrix.csv", "model=gpt,method=he,optimizer=amos"),
}
"""Where each rate was tuned: a table of docs/results, and the variant there."""


def runs(table: str) -> list[dict[str, str]]:
    """The runs of a committed table, each with its variant."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with (ROOT / "docs" / "results" / table).open(encoding="utf-8") as file:
        for cell in csv.DictReader(file):
            if cell["table"] == "runs":
                found[cell["row"]] |= {"variant": cell["variant"], cell["column"]: cell["value"]}
    return list(found.values())


@pytest.mark.parametrize("method", CHOSEN_IN)
def test_a_rate_is_the_best_of_a_committed_sweep_of_the_same_setting(method: str) -> None:
    """The ids, which are hashes of all settings, are those of finished runs of that sweep."""
    table, variant = CHOSEN_IN[method]
    sweep = load_sweep(SWEEP)
    (ours,) = (v for v in sweep.variants if v.settings["method"] == method)
    there = [run for run in runs(table) if run["variant"] == variant]
    assert {sweep.run(ours, 0, seed).name for seed in sweep.seeds} <= {run["run"] for run in there}
    losses = defaultdict(list)
    for run in there:
        if "tun" in run["phases"]:
            losses[float(run["optimizer.lr"])].append(float(run["final loss"]))
    assert len(losses) >= 3
    c: Any = ours.configs[0]
    assert c.optimizer.lr == min(losses, key=lambda rate: mean(losses[rate]))


def test_the_demo_is_a_sweep_of_twelve_runs_and_one_that_writes() -> None:
    assert len(Planner(load_sweep(SWEEP, ["train.steps=100"])).ids) == 12
    text: Any = load_config("demo-text")
    small: Any = load_sweep(SWEEP).variants[1].configs[0]
    for c in (text, small):
        assert c.model.alpha.init == 1 / c.model.n_layers
        assert c.model.s_z.init == pytest.approx(c.model.d_model**0.5, rel=2e-3)
    commands = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/ready", "demo", "DEMO_CHANGES=train.steps=9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    order = [
        "zoo train demo-text",
        "zoo generate",
        "zoo sweep configs/sweeps/demo.yaml",
        "--report runs/demo/report",
    ]
    places = [commands.index(command) for command in order]
    assert places == sorted(places)
    assert "--workers 2" in commands
    assert commands.count("train.steps=9") == 2
