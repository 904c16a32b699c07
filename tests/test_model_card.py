"""The README.md of an exported folder: what was measured, the data, and how the model was made."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_runs import tiny, tiny_fields

from zoo.hub.export import export
from zoo.run.config import load_config
from zoo.train.run import train

SCORE = {"task": "quiz", "metric": "acc", "value": 0.75, "stderr": 0.25, "documents": 4}


def test_it_has_data_recipe_and_scores(tmp_path: Path) -> None:
    first = train(tiny(tmp_path, steps=6, eval_every=6)).folder
    settings = tiny_fields(tmp_path, steps=6, eval_every=6) | {
        "name": "second",
        "model": {"from": str(first)},
    }
    run = train(load_config(settings)).folder
    (run / "tasks.json").write_text(json.dumps({"scores": [SCORE, SCORE | {"value": None}]}))
    export(run, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    results, data, recipe = (
        card.split(f"\n## {head}\n")[1] for head in ("Results", "Data", "How it was made")
    )
    assert "| quiz | 4 | acc | 0.75 | 0.25 |\n" in results and results.count("| quiz |") == 1
    assert "paths:\n    - text.txt\n" in data.split("\n## ")[0]
    assert "It was trained from the model `tiny`. The rest" in recipe
    assert "type: adamw" in recipe and "text.txt" not in recipe
    assert str(tmp_path) not in card
    export(run / "checkpoints/step-00000006", tmp_path / "again")
    assert (
        "| quiz |" not in (tmp_path / "again/README.md").read_text()
    )  # measured of the run, not of these weights
