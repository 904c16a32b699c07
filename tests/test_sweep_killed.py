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
from zoo.ablate.execute import execute
from zoo.ablate.sweep import load_sweep

# Every start is a fork of this process, which has imported everything and computed nothing.
context = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method: context

def start(file, out):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        finished = execute(load_sweep(file, out=out), workers=2).finished
        os._exit(not finished)
    os.setpgid(pid, pid)
    return pid

def written(out):
    try:
        return tuple(sorted((path.name, path.stat().st_size) for path in out.glob("runs/*/*.jsonl")))
    except FileNotFoundError:  # a new run got its name just now
        return written(out)

def ended(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

def kill(pid, out, changes, seconds):
    before = written(out)
    while changes > 0 and not ended(pid):
        time.sleep(0.001)
        now = written(out)
        changes -= now != before
        before = now
    time.sleep(seconds)
    os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]

file, alone, killed, moments = json.load(sys.stdin)
file, alone, killed = Path(file), Path(alone), Path(killed)
assert os.waitpid(start(file, alone), 0)[1] == 0
number, sweeps = 0, 1
while number < len(moments):
    status = kill(start(file, killed / str(sweeps)), killed / str(sweeps), *moments[number])
    if os.WIFSIGNALED(status):
        number += 1
    else:  # it was faster: the next one is killed as well
        assert status == 0
        sweeps += 1
assert os.waitpid(start(file, killed / str(sweeps)), 0)[1] == 0
print(number, sweeps)
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
    alone, killed = tmp_path / "alone", tmp_path / "killed"  # the second: a folder for each sweep
    done = subprocess.run(
        [sys.executable, "-c", NURSERY],
        input=json.dumps([str(file), str(alone), str(killed), moments]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment(), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    kills, sweeps = map(int, done.stdout.split())
    assert kills == KILLS
    for sweep in range(1, sweeps + 1):
        left = killed / str(sweep) / "tiny"
        assert findings(alone / "tiny") == findings(left)
        assert {run.status for run in read_manifest(left).runs} == {"finished", "stopped"}
