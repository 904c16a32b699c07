"""What a worker of a sweep is sent, and what it says of an error."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_fields

from zoo.ablate.worker import LONGEST, SentConfig, WorkerTask, attempt, in_one_line, work
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError


def test_an_error_names_file_line_and_key(tmp_path: Path) -> None:
    """Only building shows that nothing has depth 9; a worker is another process, and is sent plain data."""
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({**tiny_fields(tmp_path), "freeze": [{"depth": [9, 9]}]}, indent=1))
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if text == "  {")
    config, error_file = load_config(file), tmp_path / "error.txt"
    task = WorkerTask(SentConfig.of(config), (), 1, (), tmp_path / ".workers", error_file)
    task = pickle.loads(pickle.dumps(task))
    assert task.config.load() == config
    with pytest.raises(SystemExit):
        attempt(task)
    told = error_file.read_text().splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert told[-1].startswith(f"ConfigError: {file}:{line}: freeze[0] {{'depth': [9, 9]}} matches nothing")


def test_all_lines_of_a_message_are_in_one() -> None:
    assert in_one_line(ConfigError("a.yaml:1: one\na.yaml:2: other")) == (
        "ConfigError: a.yaml:1: one; a.yaml:2: other"
    )


def test_a_long_message_is_cut() -> None:
    assert in_one_line(RuntimeError("x" * 5000)) == f"RuntimeError: {'x' * LONGEST}..."


@pytest.mark.parametrize("answered", [False, True])
def test_a_worker_ends_quietly_when_its_sweep_was_killed(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep is gone when the run that it asked for has ended, or before it has read the answer."""
    ours, theirs = multiprocessing.Pipe()
    asked: list[str] = []

    def attempted(task: str) -> None:
        asked.append(task)
        if not answered:
            ours.close()

    def sent(answer: bool) -> None:
        type(theirs).send(theirs, answer)
        ours.close()

    monkeypatch.setattr("zoo.ablate.worker.attempt", attempted)
    monkeypatch.setattr(theirs, "send", sent)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ours.send("a run")
    work(theirs, torch.get_num_threads(), {})
    assert asked == ["a run"]
