"""torchrun with two processes computes what one does, and saves one plain checkpoint."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from command_line import zoo
from ranks import ended, said, start
from tiny_runs import ROOT, environment, of_kind, tiny_fields
from two_ranks import start_ranks, train_on_two_ranks

from zoo import load_model
from zoo.checkpoint.model import find_checkpoint
from zoo.checkpoint.safetensors import read_tensors
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.run.train_config import ParallelConfig
from zoo.train import distributed, rank_errors
from zoo.train import run as running
from zoo.train.build import seed_of_rank
from zoo.train.distributed import World, world
from zoo.train.launch import NEEDED, processes
from zoo.train.run import train
from zoo.train.start import Auto, Start, choose_start
from zoo.utils.errors import ConfigError, RankError

LAUNCHED = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29400",
}
GPT: dict[str, Any] = {
    # Odd sizes: 5 rows of mlp do not divide between two ranks, nor does a gate.
    "model": {"type": "gpt", "vocab_size": 257, "d_model": 12, "n_layers": 2, "n_heads": 2, "d_mlp": 5},
    "optimizer": {"type": "amos", "lr": 0.01, "momentum": 0.9},
    "reparam": {"type": "wesar"},
    "init": {"type": "he"},
    "schedule": "constant",
}
NGPT: dict[str, Any] = {
    "model": {**GPT["model"], "type": "ngpt"},
    "optimizer": {"type": "adamw", "lr": 0.01, "weight_decay": 0.1},
}

LOSSES = [("train", ("loss", "cross_entropy", "z_loss", "grad_norm")), ("validation", ("cross_entropy",))]


def fields(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Six steps with everything on that ranks have to agree about: accumulation, clipping, z-loss."""
    settings = tiny_fields(folder, steps=6, batch_size=8, accumulation=2, clip_norm=0.2, z_loss=1e-3)
    settings["train"] |= {"eval_every": 3, "checkpoint_every": 3, "monitor_every": 3}
    return {**settings, **case}


def agree(one: Path, two: Path) -> None:
    """Losses, monitors, weights, slots and files of a run of one process and of one of two."""
    for kind, keys in LOSSES:
        left, right = of_kind(one, kind), of_kind(two, kind)
        assert [line["step"] for line in left] == [line["step"] for line in right]
        for a, b in zip(left, right, strict=True):
            assert [b[key] for key in keys] == pytest.approx([a[key] for key in keys], abs=1e-6, rel=1e-6)
    for a, b in zip(of_kind(one, "monitor"), of_kind(two, "monitor"), strict=True):
        for name, row in a["matrices"].items():
            assert b["matrices"][name] == pytest.approx(row, rel=1e-4)
    assert of_kind(one, "size") == of_kind(two, "size")
    loaded = load_model(two)
    for name, tensor in load_model(one).state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, atol=1e-6, rtol=1e-6)
    slots = [read_tensors(find_checkpoint(run) / "optimizer.safetensors")[0] for run in (one, two)]
    assert slots[0].keys() == slots[1].keys()
    for name, slot in slots[0].items():
        torch.testing.assert_close(slots[1][name], slot, atol=1e-5, rtol=1e-5)
    assert {p.name for p in two.iterdir()} == {p.name for p in one.iterdir()}


def test_two_ranks_are_one(tmp_path: Path) -> None:
    """Trained in two sessions, which loads whole tensors into shards."""
    settings = fields(tmp_path, GPT)
    one = train(load_config({**settings, "name": "one"})).folder
    for steps, resume in ((3, False), (6, True)):
        session = {**settings, "name": "two", "train": {**settings["train"], "steps": steps}}
        train_on_two_ranks(session, resume=resume)
    agree(one, one.parent / "two")


def train_late(settings: dict[str, Any]) -> None:
    """Train as a rank; the second one looks for a run in the folder when the first waits, or has made one."""
    waiting = Path(settings["train"]["runs_dir"]).with_name("waiting")
    waits, looks, original = itertools.count(1), itertools.count(1), World.wait

    def wait(self: World) -> None:
        if self.is_main and next(waits) == 2:
            waiting.touch()
        original(self)

    def look(job: Job, resume: bool | Auto) -> Start:
        is_late = os.environ["RANK"] == "1" and next(looks) == 2  # the first look precedes the lock
        while is_late and not job.folder.exists and not waiting.exists():
            time.sleep(0.05)
        return choose_start(job, resume)

    setattr(World, "wait", wait)  # noqa: B010
    setattr(running, "choose_start", look)  # noqa: B010
    train(load_config(settings))


def test_a_slow_rank_does_not_find_the_run_that_the_first_one_begins(tmp_path: Path) -> None:
    start_ranks(train_late, tiny_fields(tmp_path, steps=5))
    assert len(of_kind(tmp_path / "runs/tiny", "train")) == 5


@pytest.mark.usefixtures("without_plugins")
def test_torchrun_with_a_plugin(tmp_path: Path) -> None:
    """The command as it is typed, with a schedule of an example."""
    settings = fields(tmp_path, NGPT) | {"schedule": {"type": "one-minus-sqrt", "decay": 0.5}}
    path = tmp_path / "two.yaml"
    path.write_text(json.dumps(settings | {"name": "two"}), encoding="utf-8")
    typed = ["train", str(path), "--plugin", str(ROOT / "examples/plugins/schedule.py")]
    zoo(*typed, "name=one")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    variables = {**environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*launcher, "-m", "zoo", *typed]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    runs = Path(settings["train"]["runs_dir"])
    agree(runs / "one", runs / "two")


def test_a_batch_that_does_not_divide_among_the_ranks(tmp_path: Path) -> None:
    """One process says it, and the other one ends with its status."""
    assert ended(start(2, tiny_fields(tmp_path, batch_size=3))) == [2, 2]
    (told,) = said(tmp_path, 2)
    assert "train.batch_size 3 does not divide among 2 processes" in told
    assert not (tmp_path / "runs").exists()


def test_processes_that_do_not_join_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed_out(timeout: int) -> None:
        raise dist.DistStoreError("Timed out after 3 seconds waiting for clients. 1/2 clients joined.")

    for key, value in LAUNCHED.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(distributed, "connect_store", timed_out)
    monkeypatch.setattr(rank_errors, "connect_store", timed_out)
    monkeypatch.setattr(rank_errors, "ASKING", 0)
    message = r"no answer from the other processes within 7 s.*1/2 clients joined"
    with pytest.raises(RankError, match=message), world("cpu", ParallelConfig(timeout=7)):
        raise AssertionError("a process alone is no world of two")


SRUN = {"PROCID": "9", "LOCALID": "1", "STEP_NUM_TASKS": "20", "STEP_TASKS_PER_NODE": "8(x2),4"}


@pytest.fixture
def started_by_srun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variables of the tenth of twenty tasks; those of torchrun are unset."""
    for name in LAUNCHED:
        monkeypatch.setenv(name, "")  # what `processes` sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_ADDR", "node-1")
    for name, value in SRUN.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    return monkeypatch


def test_the_variables_of_srun(started_by_srun: pytest.MonkeyPatch) -> None:
    assert processes() == 20
    assert [os.environ[name] for name in (*NEEDED, "MASTER_PORT")] == ["9", "1", "20", "8", "29500"]
    started_by_srun.setenv("MASTER_PORT", "1")
    started_by_srun.delenv("RANK")
    assert processes() == 20
    assert os.environ["MASTER_PORT"] == "1"


@pytest.mark.parametrize("missing", [name for name in SRUN if name != "PROCID"])
def test_variables_of_srun_that_are_missing(started_by_srun: pytest.MonkeyPatch, missing: str) -> None:
    started_by_srun.delenv(f"SLURM_{missing}")
    with pytest.raises(ConfigError, match="srun did not start this process; start it with srun"):
        processes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": None, "LOCAL_RANK": None}, "WORLD_SIZE=2, but no RANK, LOCAL_RANK; expected all"),
        ({"LOCAL_WORLD_SIZE": None}, "WORLD_SIZE=2, but no LOCAL_WORLD_SIZE; expected all"),
        ({"MASTER_PORT": None}, "WORLD_SIZE=2, but no MASTER_PORT; expected all"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two'; expected a number"),
    ],
)
def test_an_incomplete_environment(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], message: str
) -> None:
    for key, value in (LAUNCHED | changes).items():
        monkeypatch.delenv(key, raising=False) if value is None else monkeypatch.setenv(key, value)
    with pytest.raises(ConfigError, match=message):
        processes()


def test_every_rank_of_every_seed_draws_its_own_numbers() -> None:
    seeds = [seed_of_rank(seed, rank) for seed in range(50) for rank in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert [seed_of_rank(seed, 0) for seed in (0, 7, 2**63 - 1)] == [0, 7, 2**63 - 1]
    for seed in (0, 2**63 - 1):
        torch.manual_seed(seed_of_rank(seed, 1))
