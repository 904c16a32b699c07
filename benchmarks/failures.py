"""A run whose ranks are killed at random moments, again and again, against one that nobody disturbs.

    python -m benchmarks.failures --ranks 3 --kills 50

Each time one rank or all are killed (SIGKILL), the run goes on with `--resume auto`. After every kill the
last checkpoint must load and be no older than before; at the end all losses must be those of the other run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from zoo import load_model
from zoo.utils.run_folder import RunFolder

TOLERANCE = 1e-6


def settings(folder: Path, name: str, steps: int) -> Path:
    """The configuration of a small nGPT with Amos, whose checkpoints take as long as its steps."""
    model = {"type": "ngpt", "vocab_size": 257, "d_model": 64, "n_layers": 2, "n_heads": 2, "d_mlp": 160}
    train = {
        "steps": steps,
        "batch_size": 6,
        "device": "cpu",
        "runs_dir": str(folder / "runs"),
        "log_every": 1,
    }
    train |= {"checkpoint_every": 3, "eval_every": 50, "monitor_every": None, "diagnose_every": None}
    data = {"context": 32, "cache_dir": str(folder / "cache")}
    optimizer = {"type": "amos", "lr": 0.01, "momentum": 0.9}
    path = folder / f"{name}.yaml"
    given = {"name": name, "model": model, "optimizer": optimizer, "data": data, "train": train}
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


def start(config: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """`zoo train --resume auto` on some ranks of this machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "zoo", "train", str(config), "--resume", "auto"]
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started = []
    for rank in range(ranks):
        own = {key: str(value) for key, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **own}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    return started


def end(ranks: list[subprocess.Popen[str]], within: float) -> list[int]:
    """The exit statuses; a rank that does not end by itself fails the campaign."""
    outputs = [rank.communicate(timeout=within) for rank in ranks]
    if any(rank.returncode not in (0, 1, -9) for rank in ranks):
        raise AssertionError(outputs)
    return [rank.returncode for rank in ranks]


def losses(run: RunFolder) -> dict[int, float]:
    """Cross entropy by step."""
    return {r["step"]: r["cross_entropy"] for r in run.read_metrics() if r["kind"] == "train"}


def campaign(folder: Path, ranks: int, kills: int, steps: int, rng: random.Random) -> dict[str, Any]:
    """Kill and resume; raises AssertionError where something is lost."""
    alone, disturbed = settings(folder, "alone", steps), settings(folder, "disturbed", steps)
    assert end(start(alone, ranks), within=3600) == [0] * ranks
    run, known, writing, done = RunFolder(folder / "runs" / "disturbed"), 0, 0, 0
    while done < kills:
        processes = start(disturbed, ranks)
        begun, wait = known, rng.uniform(0, 2.0)
        while known == begun and all(process.poll() is None for process in processes):  # it has got further
            time.sleep(0.01)
            last = run.checkpoint() if run.exists else None
            known = max(known, last.step if last else 0)
        time.sleep(wait)
        victims = processes if rng.random() < 0.3 else [rng.choice(processes)]
        if all(process.poll() is None for process in processes):
            done += 1
            writing += any((run.path / run.CHECKPOINTS).glob(".step-*"))
            for victim in victims:
                victim.kill()
        end(processes, within=60)
        last = run.checkpoint()
        assert last is not None
        assert last.step >= known, (last.step, known)
        load_model(last.path)
        known = last.step
        if known >= steps:
            break
    assert end(start(disturbed, ranks), within=3600) == [0] * ranks
    one, other = losses(RunFolder(folder / "runs" / "alone")), losses(run)
    assert one.keys() == other.keys()
    difference = max(abs(one[step] - other[step]) for step in one)
    assert difference <= TOLERANCE, difference
    return {"ranks": ranks, "kills": done, "while writing": writing, "largest difference": difference}


def main() -> None:
    """Run the campaign, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(Path(folder), given.ranks, given.kills, given.steps, random.Random(given.seed))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
