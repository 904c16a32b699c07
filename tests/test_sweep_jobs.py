"""A sweep whose runs a scheduler makes: the commands, and the verdict afterwards."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import base, findings, sweep_file

from zoo.ablate.execute import execute
from zoo.ablate.jobs import write_jobs
from zoo.ablate.outcome import write_record
from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ConfigError, ZooError


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


def test_runs_that_depend_on_others_are_due_once_these_have_ended(tmp_path: Path) -> None:
    """Of a parabola the runs are not known in advance; a run with the name of the base is none of them."""
    alone = base(tmp_path, steps=5, eval_every=5, checkpoint_every=5) | {"name": "alone"}
    alone["train"]["runs_dir"] = str(tmp_path / "sweeps/runs")
    (tmp_path / "alone.yaml").write_text(json.dumps(alone))
    train(load_config(tmp_path / "alone.yaml"), "auto")
    rates = [1e-3, 1e-2, 1e-1]
    tune = {"grid": {"optimizer.lr": rates}, "choose": "parabola", "seeds": [100]}
    file = sweep_file(tmp_path, base="alone.yaml", axes={}, tune=tune, seeds=[0])
    counts = []
    while commands := write_jobs(load_sweep(file)):
        counts.append(len(commands))
        for command in commands:
            train(load_config(shlex.split(command)[2]), "auto")
    assert counts[0] == len(rates) and set(counts[1:]) == {1}  # one beyond a border each, and the vertex
    trained = {folder.name for folder in (tmp_path / "sweeps/runs").iterdir()} - {"alone"}
    result = execute(load_sweep(file), 1)
    assert result.finished and {run.id for run in result.manifest.runs} == trained
    assert len(trained) == sum(counts)
    assert [run.phases for run in result.manifest.runs] == [("tune",)] * (len(trained) - 1) + [("final",)]


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


def test_a_run_without_validation_is_named(tmp_path: Path) -> None:
    fields = base(tmp_path)
    fields["data"]["validation"] = 0
    sweep = load_sweep(sweep_file(tmp_path, base=fields, seeds=[0]))
    command = write_jobs(sweep)[0]
    config = load_config(shlex.split(command)[2])
    train(config, "auto")
    with pytest.raises(ZooError, match=f"{config.name}: there is no validation loss; a sweep compares them"):
        write_jobs(sweep)
    write_record(sweep.runs / config.name)  # earlier versions of zoo wrote it before they failed
    assert sweep.outcome(config.name).error == "its validation has not recorded cross_entropy"
