"""Sweeps that are run: failures, reuse, reproduction, and folders that were changed by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_runs import assert_same
from tiny_sweeps import base, sweep_file

import zoo.ablate.execute as execution
from zoo.ablate.conclusion import run_sweep
from zoo.ablate.execute import SweepResult, execute
from zoo.ablate.manifest import read_manifest
from zoo.ablate.plan import PlannedRun
from zoo.ablate.pool import Pool
from zoo.ablate.results import read_results
from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ConfigError, DataError, ZooError

BAD = {
    "he": {"init": "he"},
    "small": {"init": "small"},
    "diverges": {"optimizer": {"lr": 1e30}, "train": {"clip_norm": None}},
    "breaks": {"model": {"vocab_size": 7}},
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a sweep that was run: two variants finish, one diverges, one cannot be trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        file = sweep_file(tmp_path_factory.mktemp("swept"), axes={"method": BAD})
        execute(load_sweep(file), workers=2)
    return file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants whose runs are started during a test."""
    found, start = [], Pool.start

    def counted(self: Pool, run: PlannedRun, branches: Sequence[PlannedRun] = ()) -> None:
        found.append(run.variant)
        start(self, run, branches)

    monkeypatch.setattr(Pool, "start", counted)
    return found


def statuses(result: SweepResult) -> dict[str, set[str]]:
    runs = result.manifest.runs
    return {v.name: {r.status for r in runs if r.variant == v.name} for v in result.manifest.variants}


def test_a_failed_run_stops_no_other_and_is_tried_again(swept: Path, started: list[str]) -> None:
    output = StringIO()
    result = run_sweep(load_sweep(swept), workers=None, console=Console(file=output, width=200))
    assert result.finished
    assert result.manifest == read_manifest(swept.parent / "sweeps/tiny")
    assert statuses(result) == {
        "method=he": {"finished"},
        "method=small": {"finished"},
        "method=diverges": {"failed"},
        "method=breaks": {"failed"},
    }
    errors = {run.variant: run.error or "" for run in result.manifest.runs}
    assert errors["method=diverges"].startswith("step ")
    assert "the tokenizer 'byte' has 256 tokens, but model.vocab_size is 7" in errors["method=breaks"]
    assert {run.variant for run in result.manifest.runs if run.crashed} == {"method=breaks"}
    # A diverged run would diverge again; what else went wrong may have been mended.
    assert started == ["method=breaks"] * 2
    reports = [path.read_text() for path in (swept.parent / "sweeps/tiny/errors").iterdir()]
    assert len(reports) == 2
    assert all(report.startswith("Traceback") for report in reports)
    told = output.getvalue()
    assert "failed: method=breaks seed 1, step 0 of 12, DataError: the tokenizer" in told
    assert "Verdict" in told


def test_a_poll_at_which_no_run_has_ended_plans_nothing(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep looks at its workers twice a second; to plan hundreds of runs each time would slow them."""
    monkeypatch.setattr("zoo.ablate.execute.POLL_SECONDS", 0.002)
    made: list[str] = []

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            made.append(name)
            return original(*arguments)

        monkeypatch.setattr(owner, name, counted)

    count(execution, "settled_plan")
    count(execution, "manifest_of")
    count(Pool, "ended")
    file = sweep_file(swept.parent, "polled", axes={"init": ["bert", "amos"]})
    result = execute(load_sweep(file), workers=1)
    assert result.finished and len(result.outcomes) == 4
    # One plan at the beginning and one for every run that ends; a manifest when a run has begun or ended.
    assert made.count("ended") > 30
    assert made.count("settled_plan") == 5 and made.count("manifest_of") <= 9


def test_another_sweep_reuses_the_runs(swept: Path, started: list[str]) -> None:
    file = sweep_file(swept.parent, "other", axes={"init": ["small", "he", "gpt2"]}, seeds=[1, 2])
    found = statuses(execute(load_sweep(file), workers=1))
    assert found == {f"init={init}": {"finished"} for init in ("small", "he", "gpt2")}
    assert sorted(started) == ["init=gpt2", "init=gpt2", "init=he", "init=small"]


def test_a_run_is_reproduced_by_its_recorded_configuration(swept: Path, tmp_path: Path) -> None:
    manifest = read_manifest(swept.parent / "sweeps/tiny")
    run = next(run for run in manifest.runs if (run.variant, run.seed) == ("method=small", 1))
    folder = swept.parent / "sweeps/runs" / run.id
    again = train(load_config(folder, [f"train.runs_dir={tmp_path}"]))
    assert_same(folder, again.folder)


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def empty(folder: Path) -> None:
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.unlink()


EDITED: list[tuple[Callable[[Path], object], str]] = [
    (
        edit("config.yaml", "lr: 0.01", "lr: 0.02"),
        r"config.yaml: was edited, or the folder renamed: it is the",
    ),
    (
        edit("config.yaml", "lr: 0.01", "lr: fast"),
        r"config.yaml:\d+: optimizer.lr: value 'fast': expected a nu",
    ),
    (edit("metrics.jsonl", '"loss": ', '"loss": 1'), r"metrics.jsonl: was edited after the run had ended"),
    (
        lambda folder: (folder / "metrics.jsonl").unlink(),
        r"metrics.jsonl: was edited after the run had ended",
    ),
    (edit("record.json", "metrics", "meters"), r"record.json: was edited; delete the folder to train the"),
    (empty, r"exists and is not a run \(no config.yaml\)"),
]


@pytest.mark.parametrize(("change", "message"), EDITED)
def test_an_edited_run_is_refused(
    tmp_path: Path, started: list[str], change: Callable[[Path], object], message: str
) -> None:
    file = sweep_file(tmp_path, seeds=[0])
    runs = sorted(run.id for run in execute(load_sweep(file), workers=1).manifest.runs)
    started.clear()
    change(tmp_path / "sweeps/runs" / runs[0])
    with pytest.raises(ConfigError, match=message) as caught:
        execute(load_sweep(file), workers=1)
    assert len(str(caught.value).splitlines()) == 1
    assert not started
    with pytest.raises(ZooError):  # a report does not believe it either
        read_results([tmp_path / "sweeps/tiny"])


def test_a_run_killed_while_it_wrote_its_first_file_starts_again(tmp_path: Path) -> None:
    sweep = load_sweep(sweep_file(tmp_path, seeds=[0]))
    folder = sweep.runs / sweep.run(sweep.variants[0], 0, 0).name
    folder.mkdir(parents=True)
    (folder / ".config.yaml.partial").write_text("init")
    assert statuses(execute(sweep, workers=1)) == {"init=he": {"finished"}, "init=small": {"finished"}}


def test_data_that_no_run_can_read_is_told_once(tmp_path: Path, started: list[str]) -> None:
    fields = base(tmp_path)
    fields["data"]["corpus"] = {"type": "text", "paths": [str(tmp_path / "nowhere.txt")]}
    sweep = load_sweep(sweep_file(tmp_path, base=fields))
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        execute(sweep, workers=1)
    assert not started
    assert not (sweep.folder / "sweep.json").exists()


def test_without_validation_there_is_nothing_to_compare(tmp_path: Path) -> None:
    fields = base(tmp_path)
    fields["data"]["validation"] = 0
    result = execute(load_sweep(sweep_file(tmp_path, base=fields, seeds=[0])), workers=1)
    assert {run.status for run in result.manifest.runs} == {"failed"}
    assert "there is no validation loss; a sweep compares them" in (result.manifest.runs[0].error or "")


def test_a_manifest_that_was_edited(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"sweep.json: no such file; expected a folder made by `zoo sweep`"):
        read_manifest(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"name": "x"}))
    with pytest.raises(ZooError, match=r"sweep.json: not a manifest that `zoo sweep` wrote"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("in_turn", [False, True])
def test_runs_of_one_shape_share_a_process(
    in_turn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one of them compiles serves the others; a run of another shape gets a process of its own.

    Where the plan has the shapes in turn, a worker takes the runs of its own shape first.
    """
    used, find = [], Pool._worker

    def noted(self: Pool, run: PlannedRun) -> Any:
        worker = find(self, run)
        used.append((run.variant, worker.process.pid))
        return worker

    monkeypatch.setattr(Pool, "_worker", noted)
    axes = {"model.d_mlp": [16, 24], "optimizer.lr": [0.1, 0.01]}
    if in_turn:
        axes = dict(reversed(axes.items()))
    assert execute(load_sweep(sweep_file(tmp_path, axes=axes, seeds=[0, 1])), workers=1).finished
    sizes = [{pid for variant, pid in used if size in variant} for size in ("d_mlp=16", "d_mlp=24")]
    assert len(used) == 8 and [len(pids) for pids in sizes] == [1, 1] and sizes[0] != sizes[1]


@pytest.mark.parametrize("text, threads", [("3", 3), ("3,2", 3), (" ", 2), ("", 2), ("0", None), ("x", None)])
def test_the_threads_that_the_user_sets(
    text: str, threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    monkeypatch.setattr("zoo.ablate.pool.cores", lambda: 4)
    if threads is not None:
        assert Pool(2, tmp_path, tmp_path)._threads == threads
        return
    with pytest.raises(ZooError, match=rf"OMP_NUM_THREADS: value '{text}': expected a number of threads of"):
        Pool(2, tmp_path, tmp_path)


def test_a_sweep_that_was_moved_goes_on_where_it_is(tmp_path: Path) -> None:
    """A finished run is reused, an unfinished one is resumed, and nothing appears at the old place."""
    file = sweep_file(tmp_path, seeds=[0])
    first = execute(load_sweep(file), workers=1)
    (tmp_path / "sweeps").rename(tmp_path / "moved")
    moved = load_sweep(file, out=tmp_path / "moved")
    lost, kept = (moved.runs / run.id for run in first.manifest.runs)
    before = (kept / "metrics.jsonl").read_bytes()
    shutil.rmtree(lost / "checkpoints")
    for path in (lost / "record.json", lost / "metrics.jsonl"):
        path.unlink()
    again = execute(moved, workers=1)
    assert again.finished
    assert again.manifest == first.manifest
    assert (kept / "metrics.jsonl").read_bytes() == before
    assert (lost / "metrics.jsonl").is_file()
    assert not (tmp_path / "sweeps").exists()
    assert read_results([moved.folder]).metrics.keys() == {run.id for run in first.manifest.runs}
