"""The cost of checks: a save and a load of a gigabyte, and a step, with and without them, in turns.

A save and a load are compared with the same code without its checks, and with the library safetensors, which
has none; every save ends on the disk. The order of the contenders turns around from round to round.

python -m benchmarks.checksums --gigabytes 1 --rounds 5 --steps 400
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from zoo.checkpoint import safetensors
from zoo.checkpoint.integrity import WRITTEN, Reading, bytes_of
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.run.config import load_config
from zoo.train.interrupt import Interrupt
from zoo.train.loop import TrainingLoop
from zoo.train.run import train
from zoo.train.spikecontrol import SpikeControl
from zoo.train.step import StepResult
from zoo.utils.atomic import flush


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of a model, every other one checked")
    parser.add_argument("--config", default="gpt-tiny", help="the model that is trained")
    given = parser.parse_args()
    if given.rounds:
        _files(given.gigabytes, given.rounds)
    _steps(given.config, given.steps)


def _files(gigabytes: float, rounds: int) -> None:
    """Write and read a file again and again."""
    tensors = {str(i): torch.randn(2**22) for i in range(round(gigabytes * 1e9 / 2**24))}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        file = Path(folder, "model.safetensors")

        def save() -> None:
            write_tensors(file, tensors, {})
            flush(file)

        def library_save() -> None:
            save_file(tensors, file)
            flush(file)

        def library_load() -> None:
            mapped = load_file(file)
            [tensor.clone() for tensor in mapped.values()]  # as memory of one's own, not of the file

        def checked() -> None:
            _measure(times, "save", save)
            _measure(times, "load", lambda: read_tensors(file))

        def unchecked() -> None:
            with (
                patch.object(safetensors, "write_checked", _write),
                patch.object(safetensors, "read_checked", _read),
                patch.object(safetensors, "require_same", lambda *arguments: None),
            ):
                _measure(times, "save without checks", save)
                _measure(times, "load without checks", lambda: read_tensors(file))

        def library() -> None:
            _measure(times, "save by the library", library_save)
            _measure(times, "load by the library", library_load)

        for turn in range(rounds):
            for act in (checked, unchecked, library)[:: -1 if turn % 2 else 1]:
                act()
    for what in ("save", "load"):
        print(f"{what}: {statistics.median(times[what]):.3f} s")
        for other in ("without checks", "by the library"):
            ratios = [a / b for a, b in zip(times[what], times[f"{what} {other}"], strict=True)]
            ratio, low, high = (
                f"{x - 1:+.1%}" for x in (statistics.median(ratios), min(ratios), max(ratios))
            )
            print(f"  {ratio} ({low} to {high}) of the {what} {other}")


def _steps(config: str, steps: int) -> None:
    """Train; what a step checks is left out of every other one.

    A step asks whether the run is to stop, whether its loss and gradient are finite, and whether they are a
    spike. All of it is Python's work: its share is largest for small models.
    """
    times: tuple[list[float], list[float]] = [], []
    whole, judge, is_finite = TrainingLoop._step, SpikeControl.judge, StepResult.is_finite

    def step(self: TrainingLoop, interrupt: Interrupt) -> bool:
        without = (self.done + 1) // 2 % 2  # with, without, without, with: odd and even steps may differ
        asked = SimpleNamespace(requested=False) if without else interrupt
        with (  # both sides are patched: what comes before a step tells on its time
            patch.object(SpikeControl, "judge", (lambda *arguments: None) if without else judge),
            patch.object(StepResult, "is_finite", True if without else is_finite),
        ):
            begin = time.perf_counter()
            stopped = whole(self, cast(Interrupt, asked))
            times[without].append(time.perf_counter() - begin)
        return stopped

    with tempfile.TemporaryDirectory() as folder, patch.object(TrainingLoop, "_step", step):
        changes = [
            f"train.steps={steps}",
            f"train.runs_dir={folder}",
            "train.device=cpu",
            "train.compile=false",
        ]
        changes += [
            f"train.{key}={10 * steps}" for key in ("checkpoint_every", "eval_every", "monitor_every")
        ]
        train(load_config(config, [*changes, "train.diagnose_every=null"]))
    ratio = statistics.median(one / other for one, other in zip(*times, strict=False))
    print(f"step: {statistics.median(times[0]) * 1e3:.2f} ms, {ratio - 1:+.2%} for checks")


def _write(file: BinaryIO, data: memoryview) -> str:
    """Write in the same parts: in one piece it is slower."""
    for begin in range(0, len(data), WRITTEN):
        file.write(data[begin : begin + WRITTEN])
    return "0" * 16


def _read(file: BinaryIO, target: Tensor) -> Reading:
    return Reading(file.readinto(bytes_of(target)) == target.nbytes, "", True)  # type: ignore[attr-defined]  # it has


def _measure(times: dict[str, list[float]], name: str, act: Callable[[], object]) -> None:
    begin = time.perf_counter()
    act()
    times.setdefault(name, []).append(time.perf_counter() - begin)


if __name__ == "__main__":
    main()
