"""Of two `zoo train` of one run the second is refused before it has done anything, and told by whom."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import ROOT, assert_same, environment, tiny, tiny_fields

import zoo.train.build
from zoo.data.text.dataset import TextData, TextDataset
from zoo.run.location import configured_run, named_run
from zoo.train.claim import claimable
from zoo.train.run import train
from zoo.train.start import Auto
from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.lock import holder, locked
from zoo.utils.run_folder import RunFolder

TYPED = """
import sys
from zoo.commands.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 2
for heavy in ("torch", "numpy", "zoo.models", "zoo.data.text.dataset"):
    assert heavy not in sys.modules, heavy
"""
THIS = f"process {os.getpid()} on {os.uname().nodename}"
AT_WORK = f"another `zoo train` is at work on this run; wait for it, or stop it ({THIS})"
SHORT = {"steps": 6, "checkpoint_every": 2, "eval_every": 2, "monitor_every": None, "diagnose_every": None}


def lock_of(run: RunFolder, begun: bool) -> Path:
    """What a process that trains a run holds, or one that is about to make its folder."""
    if begun:
        run.path.mkdir(parents=True)
        run.config.write_text(json.dumps(tiny_fields(run.path.parent.parent)))
    return run.lock if begun else run.starting


@pytest.mark.parametrize("resume", [[], ["--resume"], ["--resume", "auto"]], ids=" ".join)
@pytest.mark.parametrize("begun", [True, False])
def test_refused_before_torch_is_imported(tmp_path: Path, begun: bool, resume: list[str]) -> None:
    """Importing torch takes most of the start, tokenising a corpus may take hours."""
    file = tmp_path / "tiny.yaml"
    fields = tiny_fields(tmp_path)
    del fields["name"]
    file.write_text(json.dumps(fields))
    with locked(lock_of(RunFolder(tmp_path / "runs/tiny"), begun), ""):
        command = [sys.executable, "-c", TYPED, "train", str(file), *resume]
        ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert f"error: {tmp_path}/runs/tiny: {AT_WORK}\n" == ended.stderr
    assert not (tmp_path / "cache").exists()


def forbidden(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("work was done for a run that another process has")


@pytest.mark.parametrize(("steps", "resume"), [(0, False), (0, "auto"), (2, True), (2, "auto")])
def test_refused_before_anything_is_read_or_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, resume: bool | Auto
) -> None:
    """From Python as well, whether the other process has made the folder yet or not."""
    config, run = tiny(tmp_path, **SHORT), RunFolder(tmp_path / "runs/tiny")
    if steps:
        train(config, until=steps)
    for name in ("initial_model", "load_model", "build_optimizer"):
        monkeypatch.setattr(zoo.train.build, name, forbidden)
    monkeypatch.setattr(TextData, "prepare", forbidden)
    with locked(run.lock if steps else run.starting, ""), pytest.raises(ZooError) as caught:
        train(config, resume=resume)
    assert AT_WORK in str(caught.value)


def test_what_a_run_holds_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before its corpus is read until its end, and nothing is left of it."""
    run, seen = RunFolder(tmp_path / "runs/tiny"), []
    prepare, batch = TextData.prepare, TextDataset.train_batch

    def prepared(self: TextData, model: Any) -> TextDataset:
        seen.append((run.path.exists(), holder(run.starting), holder(run.lock)))
        return prepare(self, model)

    def drawn(self: TextDataset, spec: Any) -> Any:
        if run.exists:
            seen.append((True, holder(run.starting), holder(run.lock)))
        return batch(self, spec)

    monkeypatch.setattr(TextData, "prepare", prepared)
    monkeypatch.setattr(TextDataset, "train_batch", drawn)
    whole = train(tiny(tmp_path, "name=whole", **SHORT)).folder
    seen.clear()
    train(tiny(tmp_path, **SHORT), until=2)
    assert seen[0] == (False, THIS, None)
    assert {*seen[1:]} == {(True, None, THIS)}
    seen.clear()
    assert_same(whole, train(tiny(tmp_path, **SHORT), resume=True).folder)
    assert {*seen} == {(True, None, THIS)}
    assert sorted(path.name for path in run.path.parent.iterdir()) == ["tiny", "whole"]
    assert not run.lock.exists()


def test_two_that_begin_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder appears after the first look at it, and before the lock of the start is held."""
    run = RunFolder(tmp_path / "runs/tiny")
    looks = iter([False, True])
    monkeypatch.setattr(RunFolder, "exists", property(lambda _: next(looks)))
    monkeypatch.setattr(zoo.train.claim, "require_free", lambda _: None)
    with locked(run.lock, ""), claimable(run) as claim, pytest.raises(ZooError) as caught:
        claim()
    assert AT_WORK in str(caught.value)


def test_a_refused_configuration_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="vocab_size"):
        train(tiny(tmp_path, "model.vocab_size=5", f"train.runs_dir={tmp_path}/far/away/runs"))
    assert not (tmp_path / "far").exists()


def test_a_start_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs/tiny")
    run.path.parent.mkdir()
    run.starting.write_text(f"process {2**22 + 1} on {os.uname().nodename}\n")
    assert holder(run.starting) is None
    train(tiny(tmp_path, **SHORT))
    assert [path.name for path in run.path.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("source", "overrides", "place"),
    [
        ("quickstart-gpt", [], "runs/quickstart-gpt"),
        ("quickstart-gpt", ["name=x", "train.runs_dir=/far/away"], "/far/away/x"),
        ("quickstart-gpt", ["train.steps=3", "train={runs_dir: elsewhere}"], "elsewhere/quickstart-gpt"),
        ("quickstart-gpt", ["name=3"], None),
        ("quickstart-gpt", ["train.runs_dir=[1]"], None),
    ],
)
def test_where_a_configuration_trains(source: str, overrides: list[str], place: str | None) -> None:
    assert named_run(source, overrides, resume=False) is None
    assert configured_run(source, overrides) == (None if place is None else RunFolder(Path(place)))


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_that_is_none(tmp_path: Path, kind: str) -> None:
    """A run folder can come from anywhere: a pipe would be waited for, a link's target overwritten."""
    path, other = tmp_path / ".lock", tmp_path / "other"
    other.write_text("mine")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    with pytest.raises(CheckpointError, match=r"\.lock: "), locked(path, "busy"):
        pass
    if kind == "link":
        assert holder(path) is None
    assert other.read_text() == "mine"


def test_a_disk_without_room_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, and what this session made is gone."""

    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match=r"\.tiny\.lock: cannot be written: No space left on device"):
        train(tiny(tmp_path, **SHORT))
    monkeypatch.undo()
    assert not (tmp_path / "runs").exists()
    assert train(tiny(tmp_path, **SHORT)).finished
