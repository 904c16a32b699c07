"""A sweep whose runs a scheduler makes: the commands, and the verdict afterwards."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import base, findings, sweep_file

from zoo.ablate.execute import execute
from zoo.ablate.jobs import write_jobs
from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ConfigError


def test_runs_made_by_their_commands(tmp_path: Path) -> None:
    sweep = load_sweep(sweep_file(tmp_path))
    commands = write_jobs(sweep)
    assert len(commands) == 4
    assert write_jobs(sweep) == commands
    for i, command in enumerate(commands):
        *zoo, path, resume, auto = shlex.split(command)
        assert [*zoo, resume, auto] == ["zoo", "train", "--resume", "auto"]
        train(load_config(path), "auto")
        assert write_jobs(sweep) == commands[i + 1 :]
    assert execute(sweep, 1).finished
    assert {run.status for run in findings(sweep.folder)[0].runs} == {"finished"}


@pytest.mark.usefixtures("without_plugins")
def test_commands_name_the_plugins_of_their_runs(tmp_path: Path) -> None:
    plugin = tmp_path / "schedule.py"
    shutil.copy(Path(__file__).parent.parent / "examples" / "plugins" / "schedule.py", plugin)
    settings = {"plugins": [str(plugin)], "schedule": {"type": "one-minus-sqrt", "warmup": 1}}
    file = sweep_file(tmp_path, base=base(tmp_path) | settings)
    for command in write_jobs(load_sweep(file)):
        assert command.endswith(f" --plugin {plugin}")


def test_runs_that_are_stopped_early(tmp_path: Path) -> None:
    grid = {"optimizer.lr": [0.1, 0.01]}
    tuned: dict[str, Any] = {"tune": {"grid": grid, "halving": {"at": [0.34]}}, "seeds": [0, 1]}
    with pytest.raises(ConfigError, match=r"--jobs cannot stop .* tune without halving"):
        write_jobs(load_sweep(sweep_file(tmp_path, **tuned)))
