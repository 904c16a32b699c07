"""Two sweeps in one folder, Ctrl-C, and a sweep that is killed alone, without its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tiny_runs import ROOT, environment
from tiny_sweeps import base, findings, sweep_file

from zoo.ablate.execute import execute
from zoo.ablate.manifest import read_manifest
from zoo.ablate.plan import PlannedRun
from zoo.ablate.sweep import load_sweep
from zoo.utils.errors import ZooError

STEPS = 200


def begin(file: Path) -> subprocess.Popen[str]:
    """`zoo sweep` in a process of its own, as soon as it trains something new."""
    runs = file.parent / "sweeps/runs"
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/environment.json")}
    process = subprocess.Popen(
        [sys.executable, "-m", "zoo", "sweep", str(file)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    while before == {path: path.stat().st_mtime_ns for path in runs.glob("*/environment.json")}:
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_whatever_ends_a_sweep_the_next_one_goes_on(tmp_path: Path) -> None:
    fields = base(tmp_path, steps=STEPS, checkpoint_every=50, eval_every=50, log_every=50)
    file = sweep_file(tmp_path, base=fields, seeds=[0])
    sweep = load_sweep(file)
    alone = load_sweep(file, out=tmp_path / "alone")
    assert execute(alone, workers=2).finished

    with begin(file) as first:
        with pytest.raises(
            ZooError, match=rf"another `zoo sweep` is at work there.*\(process {first.pid} on "
        ):
            execute(sweep, workers=1)
        first.send_signal(signal.SIGINT)
        output, _ = first.communicate()
    assert first.returncode == 130
    assert "Stopped, and saved. The same command goes on." in output
    assert "running" not in {run.status for run in read_manifest(sweep.folder).runs}

    with begin(file) as second:
        second.kill()
    assert second.returncode == -signal.SIGKILL
    assert "running" in {run.status for run in read_manifest(sweep.folder).runs}
    # Its workers stop by themselves, and are waited for.
    assert execute(sweep, workers=2).finished
    assert findings(sweep.folder) == findings(alone.folder)
    sessions = [json.loads(p.read_text()) for p in sweep.runs.glob("*/environment.json")]
    assert sum(map(len, sessions)) >= 4


class InterruptedPool:
    """A worker that Ctrl-C ends while it starts its first run, before the sweep has noticed the signal."""

    free = 1

    def __init__(self, *arguments: object) -> None:
        self.runs: list[PlannedRun] = []

    @property
    def running(self) -> list[str]:
        return [run.id for run in self.runs]

    def has_worker_for(self, run: PlannedRun) -> bool:
        return False

    def holds_back(self, run: PlannedRun) -> bool:
        return bool(self.runs)

    def start(self, run: PlannedRun, branches: Sequence[PlannedRun]) -> None:
        self.runs = [run]

    def ended(self, timeout: float) -> Iterator[tuple[PlannedRun, str | None]]:
        os.kill(os.getpid(), signal.SIGINT)
        run = self.runs.pop()
        yield run, "ended with status 1"

    def stop(self) -> None:
        pass


def test_a_worker_that_ctrl_c_ends_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.ablate.execute.Pool", InterruptedPool)
    sweep = load_sweep(sweep_file(tmp_path, base=base(tmp_path), seeds=[0]))
    result = execute(sweep, workers=1)
    assert not result.finished
    assert "failed" not in {run.status for run in result.manifest.runs}
    assert not any(run.error for run in result.manifest.runs)
