"""Killed at any moment, a run goes on bit for bit as if nothing had happened."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import assert_same, kill, saved, tiny_fields

from zoo.config.registry import OPTIMIZERS
from zoo.run.config import load_config
from zoo.train.run import train

FORMS: dict[str, list[dict[str, Any]]] = {
    "amos": [{"momentum": 0.9}, {}],
    "adamw": [{"weight_decay": 0.1}],
    "normuon": [{"rest": {"type": "adamw", "lr": 0.01}}],
    "muon": [{}, {"rest": {"type": "amos", "lr": 0.01, "momentum": 0.9}}],
}
OPTIMIZER_FORMS = [
    {"type": name, "lr": 0.01, **fields}
    for name in sorted(OPTIMIZERS.choices)
    for fields in FORMS.get(name, [{}])
]
COMBINATIONS = list(zip(itertools.cycle(["ngpt", "gpt"]), OPTIMIZER_FORMS, strict=False))
"""Every form of every optimizer, with one of the two models: spheres here, gates there."""


@pytest.mark.parametrize(("model", "optimizer"), COMBINATIONS, ids=str)
def test_forty_steps_are_twenty_kill_twenty(tmp_path: Path, model: str, optimizer: dict[str, Any]) -> None:
    reparam = "wesar" if model == "gpt" else "none"
    fields = tiny_fields(tmp_path, z_loss=1e-4, accumulation=2)
    fields["model"]["type"] = model
    fields |= {"optimizer": optimizer, "reparam": {"type": reparam}}
    if OPTIMIZERS[optimizer["type"]].has_own_schedule:
        fields["schedule"] = {"type": "constant"}
    whole = train(load_config({**fields, "name": "whole"}))
    kill({**fields, "name": "killed"}, "step", "global_norm", call=27)
    assert (tmp_path / "runs/killed/checkpoints/step-00000020").is_dir()
    resumed = train(load_config({**fields, "name": "killed"}), resume=True)
    assert resumed.finished
    assert (resumed.validation, resumed.best) == (whole.validation, whole.best)
    assert_same(whole.folder, resumed.folder)


def test_a_finished_linear_run_that_goes_on_is_adamw_cont(tmp_path: Path) -> None:
    """Amos, Figure 1a: 20 steps to 0, then on as if it were a run of 30; in two runs or in one."""
    fields = tiny_fields(tmp_path, steps=20) | {"schedule": {"type": "linear", "warmup": 5}}
    train(load_config({**fields, "name": "two"}))
    fields["train"]["steps"] = 30
    two = train(load_config({**fields, "name": "two"}), resume=True)
    restart = {"type": "linear-restart", "warmup": 5, "after": 20}
    one = train(load_config({**fields, "name": "one", "schedule": restart}))
    left, right = saved(one.folder), saved(two.folder)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
