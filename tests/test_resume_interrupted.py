"""Ctrl-C, SIGTERM, kill -9 at awkward moments, and what a run folder refuses."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from forks import CONTEXT, start
from rich.console import Console
from tiny_runs import ROOT, SIZES, assert_same, environment, kill, of_kind, tiny, tiny_fields

import zoo.train.checkpoints
import zoo.train.evaluate
import zoo.train.step
from zoo.checkpoint.model import load_model
from zoo.checkpoint.safetensors import write_tensors
from zoo.run.config import load_config
from zoo.train.precision import autocast
from zoo.train.run import train
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import RunFolder

CONSTANT = "schedule.type=constant"


@pytest.mark.parametrize("call", [1, 4, 6])
def test_killed_while_writing_a_checkpoint(tmp_path: Path, call: int) -> None:
    """A checkpoint is three files of tensors: whichever is being written, the one before counts."""
    fields = tiny_fields(tmp_path, eval_every=40)
    whole = train(load_config({**fields, "name": "whole"}))
    kill({**fields, "name": "killed"}, "checkpoints", "write_tensors", call)
    assert_same(whole.folder, train(load_config({**fields, "name": "killed"}), resume=True).folder)
    hidden = list((tmp_path / "runs/killed/checkpoints").glob(".*"))
    assert not hidden


def test_a_half_written_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    whole = train(tiny(tmp_path, "name=whole", CONSTANT))
    short = train(tiny(tmp_path, CONSTANT, steps=20))
    with (short.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 21, "tok')
    assert_same(whole.folder, train(tiny(tmp_path, CONSTANT), resume=True).folder)


def test_killed_before_the_first_checkpoint_it_starts_again(tmp_path: Path) -> None:
    fields = tiny_fields(tmp_path, eval_every=40)
    whole = train(load_config({**fields, "name": "whole"}))
    kill({**fields, "name": "killed"}, "step", "global_norm", call=7)
    assert_same(whole.folder, train(load_config({**fields, "name": "killed"}), resume=True).folder)


def signals(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals) -> None:
    """Have this process receive signals in the middle of step 7."""

    right, calls = zoo.train.step.global_norm, 0

    def norm(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        for number in numbers if calls == 6 else ():
            signal.raise_signal(number)
        return right(*arguments)

    monkeypatch.setattr(zoo.train.step, "global_norm", norm)


def test_the_command_that_goes_on_can_be_pasted(tmp_path: Path) -> None:
    output = StringIO()
    folder = tmp_path / "my runs"
    train(tiny(tmp_path, steps=6, runs_dir=str(folder)), console=Console(file=output, width=300), until=1)
    (command,) = re.findall(r"Go on with: (.*)", output.getvalue())
    assert shlex.split(command) == ["zoo", "train", str(folder / "tiny"), "--resume"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    whole = train(tiny(tmp_path, "name=whole", steps=20))
    before = signal.getsignal(number)
    output = StringIO()
    with monkeypatch.context() as patch:
        signals(patch, number)
        stopped = train(tiny(tmp_path, steps=20), console=Console(file=output, width=200))
    assert (stopped.step, stopped.finished) == (7, False)
    assert "Stopped and saved at step 7 of 20. Go on with: zoo train " in output.getvalue()
    assert f"{stopped.folder} --resume" in output.getvalue()
    assert signal.getsignal(number) is before
    assert_same(whole.folder, train(tiny(tmp_path, steps=20), resume=True).folder)


@pytest.mark.parametrize(("call", "step"), [(0, 0), (3, 10), (5, 20)])
def test_a_signal_breaks_an_evaluation_off_and_the_resumed_run_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, step: int
) -> None:
    """Evaluations, here of two batches, may take hours: before the first step, on the way, after the last."""
    whole = train(tiny(tmp_path, "name=whole", steps=20))
    calls = itertools.count()

    def signalled(*arguments: Any) -> Any:
        if next(calls) == call - call % 2:
            signal.raise_signal(signal.SIGTERM)
        return autocast(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(zoo.train.evaluate, "autocast", signalled)
        stopped = train(tiny(tmp_path, steps=20))
    assert (stopped.step, stopped.finished, stopped.signalled) == (step, False, True)
    assert next(calls) == call - call % 2 + 1  # the second batch was not begun
    run = RunFolder(stopped.folder)
    assert [r["step"] for r in of_kind(run.path, "validation")] == list(range(0, step, 10))
    resumed = train(tiny(tmp_path, steps=20), resume=True)
    assert resumed.finished
    assert_same(whole.folder, resumed.folder)
    for which in ("last", "best"):
        assert run.read_pointer(which) == RunFolder(whole.folder).read_pointer(which)
    last, other = run.checkpoint(), RunFolder(whole.folder).checkpoint()
    assert last is not None
    assert other is not None
    assert last.read_state() == other.read_state()
    assert train(tiny(tmp_path, steps=20), resume=True) == resumed


@pytest.mark.parametrize("call", [1, 3, 5])
def test_a_signal_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Checkpoints of steps 10 and 20 are two files of parts each, and one of random states."""
    whole = train(tiny(tmp_path, "name=whole", steps=20, checkpoint_every=10))
    calls = itertools.count(1)

    def written(*arguments: Any) -> None:
        if next(calls) == call:
            signal.raise_signal(signal.SIGTERM)
        write_tensors(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(zoo.train.checkpoints, "write_tensors", written)
        stopped = train(tiny(tmp_path, steps=20, checkpoint_every=10))
    assert stopped.step >= 10
    assert not [*stopped.folder.glob("checkpoints/.*")]
    assert RunFolder(stopped.folder).checkpoint() == RunFolder(stopped.folder).checkpoint_after(stopped.step)
    resumed = train(tiny(tmp_path, steps=20, checkpoint_every=10), resume=True)
    assert_same(whole.folder, resumed.folder)


def _stuck(parent: Connection, fields: dict[str, Any], module: str, function: str) -> None:
    """Train until `function` is called, which never ends."""

    def wait(*arguments: Any, **options: Any) -> None:
        parent.send("now")
        time.sleep(600)

    setattr(importlib.import_module(module), function, wait)
    train(load_config(fields))


STUCK = {
    "encode_in_order": ("zoo.data.text.prepare", 1),
    "initial_model": ("zoo.train.build", 1),
    "write_tensors": ("zoo.train.checkpoints", 60),
    "autocast": ("zoo.train.evaluate", 60),
}
"""Where a process is stuck, and how many signals, a second apart, it may need at most."""


@pytest.mark.parametrize("function", STUCK)
def test_a_process_that_is_stuck_is_ended(tmp_path: Path, function: str) -> None:
    """While it prepares by one SIGTERM, while it saves or evaluates by the second; then the run goes on.

    A file system that does not answer, or a corpus of hours, looks like this.
    """
    module, signals = STUCK[function]
    fields = tiny_fields(tmp_path, steps=20, checkpoint_every=10)
    here, there = CONTEXT.Pipe()
    process = start(_stuck, there, {**fields, "name": "stuck"}, module, function)
    there.close()
    assert here.recv() == "now"
    for _ in range(signals):  # two that come at the same time may be one
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGTERM)
            process.join(60 / signals)
    assert process.exitcode not in (None, 0)
    whole = train(load_config({**fields, "name": "whole"}))
    resumed = train(load_config({**fields, "name": "stuck"}), resume="auto")
    assert_same(whole.folder, resumed.folder)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["stuck", "whole"]
    left = [path for path in tmp_path.rglob(".*") if path.name.endswith((".partial", ".old", ".lock"))]
    assert not left


def test_a_second_ctrl_c_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals(monkeypatch, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path))
    assert not (tmp_path / "runs/tiny/checkpoints/last.json").exists()


def test_ctrl_c_on_the_command_line(tmp_path: Path) -> None:
    """Whenever it comes: the run that stops there and goes on is the run that never stopped."""
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(tiny_fields(tmp_path, steps=100_000)), encoding="utf-8")
    command = [sys.executable, "-m", "zoo", "train", str(config), CONSTANT]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "runs/tiny/metrics.jsonl"
        while not (metrics.exists() and of_kind(metrics.parent, "train")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130
    assert "--resume" in output
    step = json.loads((tmp_path / "runs/tiny/checkpoints/last.json").read_text())["checkpoint"].split("-")[1]
    steps = int(step) + 10 - int(step) % 10
    resumed = train(tiny(tmp_path, CONSTANT, steps=steps), resume=True)
    assert_same(train(tiny(tmp_path, "name=whole", CONSTANT, steps=steps)).folder, resumed.folder)


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    first = train(tiny(tmp_path, steps=10))
    metrics = (first.folder / "metrics.jsonl").read_bytes()
    for resume in (False, True):
        output = StringIO()
        assert (
            train(tiny(tmp_path, steps=10), resume=resume, console=Console(file=output, width=200)) == first
        )
        assert "has all its 10 steps already: nothing to do" in output.getvalue()
    assert (first.folder / "metrics.jsonl").read_bytes() == metrics


NGPT = ["model.type=ngpt", *(f"model.{key}={value}" for key, value in SIZES.items())]
REFUSED = [
    ([], False, "a run is there already, at step 10; add --resume to go on with it"),
    (["optimizer.lr=0.02"], False, "a run is there already, at step 10"),
    (["optimizer.lr=0.02"], True, "optimizer.lr was 0.01, is 0.02"),
    (NGPT, True, "model.type was 'gpt', is 'ngpt'"),
    (["train.batch_size=8", "seed=1"], True, "seed was 0, is 1; train.batch_size was 4, is 8"),
    (["data.validation=0.3"], True, "data.validation was 0.2, is 0.3"),
    (["name=other"], True, "other: there is no run to resume; leave out --resume to start it"),
    (["name=foreign"], False, "foreign: exists and is not a run (no config.yaml)"),
]


@pytest.mark.parametrize(("overrides", "resume", "message"), REFUSED, ids=str)
def test_refused(finished: Path, overrides: list[str], resume: bool, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(tiny(finished, *overrides), resume=resume)
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of ten steps, and one that is not a run."""
    folder = tmp_path_factory.mktemp("finished")
    train(tiny(folder, steps=10))
    (folder / "runs/foreign").mkdir()
    (folder / "runs/foreign/notes.txt").write_text("mine")
    return folder


def test_other_parts_of_a_batch(tmp_path: Path) -> None:
    """A run that goes on with other parts of a batch, as on devices with less memory, differs by rounding."""
    weights = {}
    for name, parts in (("whole", 1), ("parts", 2)):
        train(tiny(tmp_path, f"name={name}", steps=10), until=4)
        train(tiny(tmp_path, f"name={name}", f"train.accumulation={parts}", steps=10), resume=True)
        assert load_config(tmp_path / "runs" / name).train.accumulation == parts  # type: ignore[union-attr]
        weights[name] = load_model(tmp_path / "runs" / name).state_dict()
    differences = [(weights["parts"][key] - tensor).abs().max() for key, tensor in weights["whole"].items()]
    assert 0 < max(differences) < 1e-5


def test_what_may_change(tmp_path: Path) -> None:
    train(tiny(tmp_path, steps=10))
    changes = {"steps": 12, "log_every": 5, "eval_every": 4, "checkpoint_every": 3, "keep_last": 1}
    assert train(tiny(tmp_path, "train.device=auto", **changes), resume=True).step == 12  # another machine's
    assert load_config(tmp_path / "runs/tiny").train.keep_last == 1  # type: ignore[union-attr]
    assert {r["step"] for r in RunFolder(tmp_path / "runs/tiny").read_metrics()} >= {10, 12}
    load_model(tmp_path / "runs/tiny")
    sessions = json.loads((tmp_path / "runs/tiny/environment.json").read_text())
    assert [session["from_step"] for session in sessions] == [0, 10]
