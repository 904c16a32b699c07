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
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented, but not in __all__

from zoo import load_model
from zoo.run.config import load_config
from zoo.train import rank_errors
from zoo.train.run import train
from zoo.utils.errors import ConfigError, EndedRankError, RankError

MODEL = {"type": "ngpt", "vocab_size": 257, "d_model": 12, "n_layers": 2, "n_heads": 2, "d_mlp": 5}


def settings(folder: Path, **train: Any) -> dict[str, Any]:
    """Thirty steps of nGPT with Amos, on batches that 1, 2, 3 and 6 ranks can divide."""
    usual = {"steps": 30, "batch_size": 6, "checkpoint_every": 2, "eval_every": 10}
    fields = tiny_fields(folder, **{**usual, **train})
    return {**fields, "model": MODEL, "optimizer": {"type": "amos", "lr": 0.01, "momentum": 0.9}}


def assert_trained_alike(alone: Path, run: Path) -> None:
    """Two runs have logged the same steps and losses, and have the same weights, but for rounding."""
    for kind in ("train", "validation"):
        left, right = of_kind(alone, kind), of_kind(run, kind)
        assert [line["step"] for line in right] == [line["step"] for line in left]
        for a, b in zip(left, right, strict=True):
            assert b["cross_entropy"] == pytest.approx(a["cross_entropy"], abs=1e-6, rel=1e-6)
    for one, other in zip(load_model(alone).parameters(), load_model(run).parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


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
    assert_trained_alike(alone, run)
    assert not list((run / "checkpoints").glob(".*"))


def test_a_hung_rank_is_noticed(tmp_path: Path) -> None:
    given = settings(tmp_path, parallel={"timeout": 4})
    ranks = start(2, given, fault="hangs")
    statuses = ended(ranks[:1])
    ended(ranks[1:], within=0)
    assert statuses == [1]
    (error,) = said(tmp_path, 1)
    assert "step 3: no answer from the other processes within 4 s (train.parallel.timeout)" in error


def test_copies_of_shards(tmp_path: Path) -> None:
    """Two copies of two shards each train as one process does, and wait no longer than they should."""
    given = settings(tmp_path, batch_size=8, steps=6)
    alone = train(load_config({**given, "name": "alone"})).folder
    given["train"]["parallel"] = {"replicate": 2, "timeout": 20}
    assert ended(start(4, given)) == [0, 0, 0, 0]
    assert_trained_alike(alone, tmp_path / "runs" / "tiny")

    ranks = start(4, {**given, "name": "hung"}, fault="hangs")
    statuses = ended(ranks[:3])
    ended(ranks[3:], within=0)
    assert statuses == [1, 1, 1]
    assert "no answer from the other processes within 20 s (train.parallel.timeout)" in said(tmp_path, 3)[0]


def test_the_rank_that_knows_the_reason_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that fails closes its connections first, which another one may notice before it reports."""
    store, ranks = HashStore(), [0]
    monkeypatch.setattr(rank_errors, "connect_store", lambda timeout: store)
    monkeypatch.setattr(rank_errors, "_rank", lambda: ranks[-1])

    def meanwhile(seconds: float) -> None:
        if ranks == [0]:
            ranks.append(1)
            with pytest.raises(RankError, match="no answer"), rank_errors.only_first_rank_reports():
                raise RankError("no answer")
            ranks.append(0)

    monkeypatch.setattr("zoo.train.rank_errors.time.sleep", meanwhile)
    with pytest.raises(SystemExit), rank_errors.only_first_rank_reports():
        raise EndedRankError("another process has ended")
    assert ranks == [0, 1, 0]


LSTM = {"type": "lstm", "vocab_size": 257, "d_model": 12}
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "mesh": (
        {"train": {"parallel": {"shard": 3}}},
        "",
        "train.parallel: shard 3 x replicate 1 does not make 2 processes",
    ),
    "batch": ({"train": {"batch_size": 5}}, "", "train.batch_size 5 does not divide among 2 processes"),
    "storage of one process": (
        {"train": {"storage": "bf16", "precision": "bf16"}},
        "",
        "train.storage bf16: not with 2 processes; expected fp32",
    ),
    "storage that is not computed with": (
        {"train": {"storage": "bf16"}},
        "",
        "config.yaml:1: train: storage: bf16 needs precision: bf16",
    ),
    "recompute": (
        {"train": {"recompute": "blocks"}, "model": LSTM},
        "",
        "train.recompute: 'blocks' needs a model of blocks, and 'lstm' has none",
    ),
    "key": ({"train": {"recompte": "blocks"}}, "", "unknown key; did you mean 'recompute'?"),
    "device": ({}, "no device", "process 1: train.device: device 'cuda': there is none here"),
    "config": ({}, "no config", "config.yaml.lost: no such file; did you mean"),
    "one process": ({}, "fails", "what only this process has"),
}
"""Changes of the configuration, what is wrong with the last process, and what one of them says."""


@pytest.mark.parametrize("wrong", WRONG)
def test_one_rank_tells_what_is_wrong_and_all_exit(tmp_path: Path, wrong: str) -> None:
    changes, fault, message = WRONG[wrong]
    given = {**settings(tmp_path, **changes.get("train", {})), "model": changes.get("model", MODEL)}
    assert ended(start(2, given, fault=fault)) == [1 if fault == "fails" else 2, 2]
    (error,) = said(tmp_path, 2)
    assert message in error
    assert (tmp_path / "runs").exists() == (fault == "fails")


def shard(checkpoint: Path, number: int, of: str = "model") -> Path:
    return checkpoint / f"shard-{number:05}-{of}-00001-of-00001.safetensors"


def test_one_rank_tells_which_shard_is_wrong(tmp_path: Path) -> None:
    """Of another checkpoint, missing, torn, and damaged where only one rank reads it."""
    given = settings(tmp_path, steps=6)
    assert ended(start(2, given)) == [0, 0]
    given["train"]["steps"] = 8
    checkpoints = tmp_path / "runs" / "tiny" / "checkpoints"
    before, last = checkpoints / "step-00000004", checkpoints / "step-00000006"
    whole = {path: path.read_bytes() for path in last.glob("shard-*")}
    second, slots = shard(last, 2), shard(last, 2, "optimizer")
    flipped = bytearray(whole[slots])
    flipped[-1] ^= 64
    damage: list[tuple[Path, bytes | None, str]] = [
        (second, shard(before, 2).read_bytes(), f"{second}: belongs to another checkpoint than shard-00001"),
        (second, None, "model.safetensors: expected 2 pieces, shard-00001 and so on; piece 2 is missing"),
        (slots, whole[slots][:-4], f"{slots}: not a complete safetensors file"),
        (slots, bytes(flipped), "is damaged: its checksum is another than when it was written"),
    ]
    for path, content, message in damage:
        path.unlink() if content is None else path.write_bytes(content)
        by_one = content == bytes(flipped)  # the other rank finds that this one has ended
        assert ended(start(2, given)) == [1 if by_one else 2, 2]
        (error,) = said(tmp_path, 2)
        assert message in error
        assert f"The last good checkpoint is {before}" in error
        path.write_bytes(whole[path])


def test_a_second_world_is_refused(tmp_path: Path) -> None:
    """Two launches of one run at a time: the second one says who is at work, and the first goes on."""
    given = settings(tmp_path, steps=100_000)
    first = start(2, given, pause=0.1)
    reached(tmp_path / "runs" / "tiny", 2)
    assert ended(start(2, given, said_in="second")) == [2, 2]
    (error,) = said(tmp_path, 2, "second")
    assert "another `zoo train` is at work on this run; wait for it, or stop it" in error
    assert f"(process {first[0].pid} on " in error
    os.kill(first[0].pid or 0, signal.SIGTERM)
    assert ended(first) == [75, 75]
    assert not said(tmp_path, 2)


def test_one_process_takes_a_mesh_of_one(tmp_path: Path) -> None:

    given = settings(tmp_path, parallel={"replicate": 2})
    with pytest.raises(ConfigError, match="shard 1 x replicate 2 does not make 1 processes"):
        train(load_config(given))
