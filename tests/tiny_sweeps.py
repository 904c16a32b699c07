"""Sweeps so small that a test can run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_runs import reproducible, tiny_fields

from zoo.ablate.estimate import SpeedProbe
from zoo.ablate.manifest import read_manifest, run_folder
from zoo.ablate.results import read_results
from zoo.ablate.sweep import Sweep
from zoo.ablate.tables import verdict_table
from zoo.ablate.verdict import judge


class FixedSpeed(SpeedProbe):
    """A speed that nothing is trained for."""

    def seconds(self, sweep: Sweep, what: str) -> float:
        """Seconds of a step."""
        return 0.01


def base(folder: Path, **train: Any) -> dict[str, Any]:
    """The configuration that all runs share: 12 steps of a tiny GPT."""
    usual = {"steps": 12, "eval_every": 4, "monitor_every": None, "checkpoint_every": 4}
    fields = tiny_fields(folder, **{**usual, **train})
    fields["model"] |= {"d_model": 8, "n_layers": 1, "d_mlp": 16}
    fields["data"]["context"] = 8
    del fields["name"], fields["train"]["runs_dir"]  # those of a sweep's runs are its own
    return fields


def sweep_file(folder: Path, name: str = "tiny", **fields: Any) -> Path:
    """A sweep of two initialisations with two seeds; YAML is a superset of JSON."""
    given = {"base": base(folder), "axes": {"init": ["he", "small"]}, "seeds": [0, 1]}
    path = folder / f"{name}.yaml"
    path.write_text(
        json.dumps({**given, "out": str(folder / "sweeps"), **fields}, indent=1), encoding="utf-8"
    )
    return path


def findings(folder: Path) -> tuple[Any, ...]:
    """All that a sweep has found: its manifest, its table, and every line of its runs but the timings."""
    manifest = read_manifest(folder)
    lines = {run.id: reproducible(run_folder(folder, run)) for run in manifest.runs}
    return manifest, verdict_table(judge(read_results([folder]))).texts, lines
