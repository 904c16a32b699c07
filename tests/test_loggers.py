"""What TensorBoard and Weights & Biases get is what metrics.jsonl says, also after a resume."""

from __future__ import annotations

import json
import shutil
import struct
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_runs import tiny, tiny_fields

from zoo.config.registry import LOGGERS
from zoo.run.config import load_config
from zoo.run.loggers import base, scalars
from zoo.run.loggers.wandb import Wandb
from zoo.train.run import train
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import RunFolder

OFFLINE: dict[str, Any] = {"type": "wandb", "mode": "offline", "tags": ["tiny"]}
Values = dict[tuple[str, int], float]


def expected(run: Path) -> Values:
    """Every number of metrics.jsonl by its tag and step; none is there twice."""
    found: Values = {}
    for record in RunFolder(run).read_metrics():
        for tag, value in scalars(record).items():
            assert (tag, record["step"]) not in found
            found[tag, record["step"]] = value
    return found


def in_tensorboard(run: Path) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(run / "tensorboard"), {"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    found: Values = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert (tag, event.step) not in found
            found[tag, event.step] = event.value
    return found


def records_of(file: Path) -> list[bytes]:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes, in blocks of 32 KiB.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    data, at, found, partial = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        partial += data[at + 7 : at + 7 + length]
        if kind in (1, 4):  # a whole record, or the last piece of one
            found.append(partial)
            partial = b""
        at += 7 + length
    return found


def in_wandb(run: Path) -> tuple[Values, str]:
    record_class = import_module("wandb.proto.wandb_internal_pb2").Record

    (file,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    found: Values = {}
    for data in records_of(file):
        record = record_class.FromString(data)
        if record.WhichOneof("record_type") == "history":
            step = record.history.step.num
            for item in record.history.item:
                tag = item.key or "/".join(item.nested_key)
                if not tag.startswith("_"):
                    assert (tag, step) not in found
                    found[tag, step] = json.loads(item.value_json)
    return found, file.stem


def test_they_get_what_metrics_jsonl_says(tmp_path: Path) -> None:
    """The run is killed after step 30, resumes at the checkpoint of step 20, and has no step twice."""
    fields = tiny_fields(tmp_path, loggers=["tensorboard", OFFLINE])
    fields["train"]["eval_every"] = 40  # so that no earlier checkpoint is the best one
    run = train(load_config(fields), until=20).folder
    _, first = in_wandb(run)
    killed = tmp_path / "killed"
    shutil.copytree(run, killed, symlinks=True)
    train(load_config(fields), resume=True, until=30)
    for log in ("tensorboard", "wandb"):
        shutil.rmtree(killed / log)
        shutil.move(run / log, killed / log)
    shutil.copyfile(run / "metrics.jsonl", killed / "metrics.jsonl")
    shutil.rmtree(run)
    killed.rename(run)
    assert in_tensorboard(run).keys() == expected(run).keys()
    assert max(step for _, step in expected(run)) == 30

    assert train(load_config(fields), resume=True).finished
    wanted = expected(run)
    assert {tag.split("/")[0] for tag, _ in wanted} >= {"size", "train", "validation", "monitor", "diagnose"}
    assert {step for _, step in wanted} == set(range(41))
    assert in_tensorboard(run) == pytest.approx(wanted, rel=1e-6)  # it stores float32
    values, second = in_wandb(run)
    assert values == wanted
    assert first == second, "another run for Weights & Biases"


def test_a_logger_may_join_a_resumed_run(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    run = train(config, until=20).folder
    train(tiny(tmp_path, loggers=["tensorboard"]), resume=True)
    assert in_tensorboard(run) == pytest.approx(expected(run), rel=1e-6)


def test_numbers_of_a_record() -> None:
    record = {"kind": "a", "step": 3, "x": 1, "y": None, "z": "word", "t": True, "in": {"u": 2.5, "v": [1]}}
    assert scalars(record) == {"a/x": 1, "a/in/u": 2.5}


@pytest.mark.parametrize(
    ("loggers", "problem"),
    [
        (
            ["tensorbord"],
            "train.loggers.0.type: value 'tensorbord': no such type; did you mean 'tensorboard'?",
        ),
        (["wandb", {"type": "wandb", "mode": "offline"}], "wandb is given more than once"),
        ([{"type": "wandb", "mode": "offlin"}], "train.loggers.0.mode: value 'offlin': expected"),
        ([{"type": "tensorboard", "project": "x"}], "train.loggers.0.project: unknown key"),
    ],
)
def test_mistakes(tmp_path: Path, loggers: list[Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(tmp_path, loggers=loggers)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_known_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(base, "find_spec", lambda package: None)
    config = tiny(tmp_path, loggers=[name])
    with pytest.raises(ConfigError, match=rf"{name} is not installed; expected: pip install '\.\[{name}\]'"):
        train(config)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache").exists()


def test_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"wandb does not start: .*or \{type: wandb, mode: offline\}"):
        train(tiny(tmp_path, loggers=["wandb"]))


def test_both_are_registered() -> None:
    assert set(LOGGERS.choices) == {"tensorboard", "wandb"}


@pytest.mark.parametrize(("has", "sent"), [(0, [1, 2]), (3, [])])
def test_a_server_that_has_no_record_gets_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: int, sent: list[int]
) -> None:
    steps: list[int] = []
    online = SimpleNamespace(starting_step=has, log=lambda numbers, step: steps.append(step))
    monkeypatch.setattr("wandb.init", lambda **_: online)
    kept = [{"kind": "train", "step": step, "loss": 1.0} for step in (1, 2)]
    Wandb(mode="online").open(tmp_path, {}, kept)
    assert steps == sent
