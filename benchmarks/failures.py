"""A run whose ranks are killed at random moments, again and again, against one that nobody disturbs.

    python -m benchmarks.failures --ranks 3 --kills 50

Each time one rank or all are killed (SIGKILL); the others have to end within a minute, and the run goes on
with `--resume auto`. After every kill the
last checkpoint must load and be no older than before; at the end all losses must be those of the other run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from zoo import load_model
from zoo.commands.cli import main as main_of_zoo
from zoo.utils.run_folder import RunFolder

TOLERANCE = 1e-6
STOPPED = 75
"""The status of a run that a signal has ended."""
CONTEXT = multiprocessing.get_context("forkserver")
"""Ranks are forks of a process that has imported everything, so that a kill costs no imports."""


def settings(folder: Path, name: str, steps: int, batch: int = 6) -> Path:
    """The configuration of a small nGPT with Amos, whose checkpoints take as long as its steps."""
    model = {"type": "ngpt", "vocab_size": 257, "d_model": 64, "n_layers": 2, "n_heads": 2, "d_mlp": 160}
    train = {
        "steps": steps,
        "batch_size": batch,
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


def start(config: Path, ranks: int) -> list[BaseProcess]:
    """`zoo train --resume auto` on some ranks of this machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started: list[BaseProcess] = []
    for rank in range(ranks):
        own = {key: str(value) for key, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
        started.append(CONTEXT.Process(target=_train, args=(config, own, config.parent / f"said-{rank}")))
        started[-1].start()
    return started


def _train(config: Path, variables: dict[str, str], said: Path) -> None:
    """Train as one rank; what it prints is in the file `said`."""
    os.environ |= variables
    torch.set_num_threads(1)
    printed = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    main_of_zoo(["train", str(config), "--resume", "auto"])


def end(ranks: list[BaseProcess], config: Path, within: float) -> list[int | None]:
    """The exit statuses; a rank that does not end by itself fails the campaign."""
    limit = time.monotonic() + within
    for rank in ranks:
        rank.join(max(0.0, limit - time.monotonic()))
    statuses = [rank.exitcode for rank in ranks]
    if any(status not in (0, 1, STOPPED, -signal.SIGKILL) for status in statuses):
        for rank in ranks:
            rank.kill()
        said = [(config.parent / f"said-{r}").read_text(encoding="utf-8") for r in range(len(ranks))]
        raise AssertionError(statuses, said)
    return statuses


def reached(run: RunFolder) -> int:
    """The step of the last checkpoint; 0 before the first one."""
    last = run.checkpoint() if run.exists else None
    return last.step if last else 0


def losses(run: RunFolder) -> dict[int, float]:
    """Cross entropy by step."""
    return {r["step"]: r["cross_entropy"] for r in run.read_metrics() if r["kind"] == "train"}


def campaign(folder: Path, ranks: int, kills: int, steps: int, rng: random.Random) -> dict[str, Any]:
    """Kill and resume; raises AssertionError where something is lost."""
    alone, disturbed = settings(folder, "alone", steps), settings(folder, "disturbed", steps)
    assert end(start(alone, ranks), alone, within=3600) == [0] * ranks
    run, known = RunFolder(folder / "runs" / "disturbed"), 0
    done = together = early = writing = 0
    slowest = 0.0
    while done < kills and known < steps:
        processes = start(disturbed, ranks)
        begun, wait, at_once = known, rng.uniform(0, 2.0), rng.random() < 0.2
        while not at_once and known == begun and all(process.is_alive() for process in processes):
            time.sleep(0.01)  # until it has got further
            known = max(known, reached(run))
        time.sleep(wait)
        # A rank that waits for others to start cannot know that they were killed: their launcher ends it.
        victims = processes if at_once or rng.random() < 0.3 else [rng.choice(processes)]
        if all(process.is_alive() for process in processes):
            done += 1
            together += victims is processes
            early += reached(run) == begun
            writing += any((run.path / run.CHECKPOINTS).glob(".step-*"))
            for victim in victims:
                victim.kill()
        killed = time.monotonic()
        end(processes, disturbed, within=60)
        slowest = max(slowest, time.monotonic() - killed)
        last = run.checkpoint() if run.exists else None
        assert reached(run) >= known, (reached(run), known)
        known = reached(run)
        if last is not None:
            load_model(last.path)
    assert end(start(disturbed, ranks), disturbed, within=3600) == [0] * ranks
    one, other = losses(RunFolder(folder / "runs" / "alone")), losses(run)
    assert one.keys() == other.keys()
    difference = max(abs(one[step] - other[step]) for step in one)
    assert difference <= TOLERANCE, difference
    return {
        "ranks": ranks,
        "steps": steps,
        "kills": done,
        "of all ranks": together,
        "before the first new checkpoint": early,
        "while shards were written": writing,
        "slowest end of the others, s": round(slowest, 1),
        "largest difference of a loss": difference,
    }


def main() -> None:
    """Run the campaign, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    CONTEXT.set_forkserver_preload(["zoo.commands.cli", "zoo.train.run", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(Path(folder), given.ranks, given.kills, given.steps, random.Random(given.seed))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
