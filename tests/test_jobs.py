"""Runs as clusters run them: killed, stopped and continued on other numbers of ranks, and their errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import ended, reached, said, start
from tiny_runs import of_kind, tiny_fields

from zoo import load_model
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ConfigError

MODEL = {"type": "ngpt", "vocab_size": 257, "d_model": 12, "n_layers": 2, "n_heads": 2, "d_mlp": 5}


def settings(folder: Path, **train: Any) -> dict[str, Any]:
    """Thirty steps of nGPT with Amos, on batches that 1, 2, 3 and 6 ranks can divide."""
    usual = {"steps": 30, "batch_size": 6, "checkpoint_every": 2, "eval_every": 10}
    fields = tiny_fields(folder, **{**usual, **train})
    return {**fields, "model": MODEL, "optimizer": {"type": "amos", "lr": 0.01, "momentum": 0.9}}


def test_killed_and_stopped_runs_go_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    """3 ranks, one of which is killed; then 1, which is told to stop; then 2."""
    given = settings(tmp_path)
    alone = train(load_config({**given, "name": "alone"})).folder
    run = tmp_path / "runs" / "several"
    given["name"] = "several"

    ranks = start(3, given, pause=0.1)
    reached(run, 4)
    os.kill(ranks[1].pid or 0, signal.SIGKILL)
    assert ended(ranks) == [1, -signal.SIGKILL, 1]
    errors = said(tmp_path, 3)  # of one process, or of two if the first one to tell holds the store
    assert errors
    assert all("several: step " in error and "another process has ended" in error for error in errors)

    ranks = start(1, given, pause=0.1)
    reached(run, 12)
    os.kill(ranks[0].pid or 0, signal.SIGTERM)
    assert ended(ranks) == [75]

    assert ended(start(2, given)) == [0, 0]
    for kind in ("train", "validation"):
        left, right = of_kind(alone, kind), of_kind(run, kind)
        assert [line["step"] for line in right] == [line["step"] for line in left]
        for a, b in zip(left, right, strict=True):
            assert b["cross_entropy"] == pytest.approx(a["cross_entropy"], abs=1e-6, rel=1e-6)
    for one, other in zip(load_model(alone).parameters(), load_model(run).parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert not list((run / "checkpoints").glob(".*"))


def test_a_hung_rank_is_noticed(tmp_path: Path) -> None:
    given = settings(tmp_path, parallel={"timeout": 4})
    ranks = start(2, given, fault="hangs")
    assert ended(ranks[:1]) == [1]
    ended(ranks[1:], within=0)
    (error,) = said(tmp_path, 1)
    assert "step 3: no answer from the other processes within 4 s (train.parallel.timeout)" in error


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "mesh": (
        {"parallel": {"shard": 3}},
        "",
        "train.parallel: shard 3 x replicate 1 does not make 2 processes",
    ),
    "batch": ({"batch_size": 5}, "", "train.batch_size 5 does not divide among 2 processes"),
    "storage": (
        {"storage": "bf16", "precision": "bf16"},
        "",
        "train.storage bf16: not with 2 processes; expected fp32",
    ),
    "device": ({}, "no device", "process 1: device 'cuda': there is none here"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_rank_tells_what_is_wrong_and_all_exit(tmp_path: Path, wrong: str) -> None:
    train, fault, message = WRONG[wrong]
    assert ended(start(2, settings(tmp_path, **train), fault=fault)) == [2, 2]
    (error,) = said(tmp_path, 2)
    assert message in error
    assert not (tmp_path / "runs").exists()


def test_one_process_takes_a_mesh_of_one(tmp_path: Path) -> None:

    given = settings(tmp_path, parallel={"replicate": 2})
    with pytest.raises(ConfigError, match="shard 1 x replicate 2 does not make 1 processes"):
        train(load_config(given))
