"""kill -9 at random moments: the sweep that is started again ends as the one left alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from tiny_runs import ROOT, environment
from tiny_sweeps import base, findings, sweep_file

from zoo.ablate.manifest import read_manifest

KILLS = 20

NURSERY = """
import json, multiprocessing, os, signal, sys, time
from pathlib import Path
import torch._dynamo
from zoo.ablate.run import run_sweep
from zoo.ablate.sweep import load_sweep

# Every start is a fork of this process, which has imported everything and computed nothing.
context = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method: context

def start(file, out):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        finished = run_sweep(load_sweep(file, out=out), workers=2).finished
        os._exit(not finished)
    os.setpgid(pid, pid)
    return pid

def written(out):
    return tuple(sorted((path.name, path.stat().st_size) for path in out.glob("runs/*/*.jsonl")))

def kill(pid, out, changes, seconds):
    before = written(out)
    while changes:
        time.sleep(0.001)
        now = written(out)
        changes -= now != before
        before = now
    time.sleep(seconds)
    os.killpg(pid, signal.SIGKILL)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])

file, alone, killed, moments = json.load(sys.stdin)
file, alone, killed = Path(file), Path(alone), Path(killed)
print(os.waitpid(start(file, alone), 0)[1])
for changes, seconds in moments:
    print(kill(start(file, killed), killed, changes, seconds))
print(os.waitpid(start(file, killed), 0)[1])
"""


def test_killed_twenty_times_it_ends_with_the_same_table(tmp_path: Path) -> None:
    file = sweep_file(
        tmp_path,
        base=base(tmp_path, log_every=1),
        tune={"grid": {"optimizer.lr": [0.001, 0.01, 0.1]}, "halving": {"at": [0.5]}},
    )
    # When: after so many writes to any metrics.jsonl, and then so many seconds.
    chance = random.Random(0)
    moments = [(chance.randrange(10), chance.uniform(0, 0.1)) for _ in range(KILLS)]
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", NURSERY],
        input=json.dumps([str(file), str(alone), str(killed), moments]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment(), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert [int(line) for line in done.stdout.split()] == [0, *[9] * KILLS, 0], done.stderr
    assert findings(alone / "tiny") == findings(killed / "tiny")
    assert {run.status for run in read_manifest(killed / "tiny").runs} == {"finished", "stopped"}
