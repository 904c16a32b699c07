"""The cost of checks: a save and a load of a gigabyte, and a step, with and without them, in turns.

python -m benchmarks.checksums --gigabytes 1 --rounds 5 --steps 400
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast
from unittest.mock import patch

import torch
from torch import Tensor

from zoo.checkpoint import safetensors
from zoo.checkpoint.integrity import Reading, bytes_of
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.run.config import load_config
from zoo.train.interrupt import Interrupt
from zoo.train.run import train
from zoo.train.session import _Session
from zoo.train.spikecontrol import SpikeControl
from zoo.train.step import StepResult
from zoo.utils.atomic import flush


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of a model, every other one checked")
    given = parser.parse_args()
    _files(given.gigabytes, given.rounds)
    _steps(given.steps)


def _files(gigabytes: float, rounds: int) -> None:
    """Write and read a file again and again."""
    tensors = {str(i): torch.randn(2**22) for i in range(round(gigabytes * 1e9 / 2**24))}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        file = Path(folder, "model.safetensors")

        def save() -> None:
            write_tensors(file, tensors, {})
            flush(file)

        for _ in range(rounds):
            _measure(times, "save with", save)
            _measure(times, "load with", lambda: read_tensors(file))
            with (
                patch.object(safetensors, "write_checked", _write),
                patch.object(safetensors, "read_checked", _read),
                patch.object(safetensors, "require_same", lambda *arguments: None),
            ):
                _measure(times, "save without", save)
                _measure(times, "load without", lambda: read_tensors(file))
    for what in ("save", "load"):
        pairs = zip(times[f"{what} with"], times[f"{what} without"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"{what}: {statistics.median(times[f'{what} with']):.3f} s, {ratio - 1:+.1%} for checksums")


def _steps(steps: int) -> None:
    """Train; what a step checks is left out of every other one.

    A step asks whether the run is to stop, whether its loss and gradient are finite, and whether they are a
    spike. All of it is Python's work: its share is largest for small models.
    """
    times: tuple[list[float], list[float]] = [], []
    checked = _Session._step

    def step(self: _Session, interrupt: Interrupt) -> bool:
        without = self.done % 2
        with ExitStack() as unchecked:
            if without:
                unchecked.enter_context(patch.object(SpikeControl, "judge", lambda *arguments: None))
                unchecked.enter_context(patch.object(StepResult, "is_finite", True))
                interrupt = cast(Interrupt, SimpleNamespace(requested=False))
            begin = time.perf_counter()
            stopped = checked(self, interrupt)
            times[without].append(time.perf_counter() - begin)
        return stopped

    with tempfile.TemporaryDirectory() as folder, patch.object(_Session, "_step", step):
        changes = [
            f"train.steps={steps}",
            f"train.runs_dir={folder}",
            "train.device=cpu",
            "train.compile=false",
        ]
        changes += [
            f"train.{key}={10 * steps}" for key in ("checkpoint_every", "eval_every", "monitor_every")
        ]
        train(load_config("gpt-tiny", [*changes, "train.diagnose_every=null"]))
    ratio = statistics.median(one / other for one, other in zip(*times, strict=False))
    print(f"step: {statistics.median(times[0]) * 1e3:.2f} ms, {ratio - 1:+.2%} for checks")


def _write(file: BinaryIO, data: memoryview) -> str:
    file.write(data)
    return "0" * 16


def _read(file: BinaryIO, target: Tensor) -> Reading:
    return Reading(file.readinto(bytes_of(target)) == target.nbytes, "", True)  # type: ignore[attr-defined]  # it has


def _measure(times: dict[str, list[float]], name: str, act: Callable[[], object]) -> None:
    begin = time.perf_counter()
    act()
    times.setdefault(name, []).append(time.perf_counter() - begin)


if __name__ == "__main__":
    main()
