"""The cost of checksums: a save and a load of a gigabyte with and without them, in turns.

python -m benchmarks.checksums --gigabytes 1 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import torch
from torch import Tensor

from zoo.checkpoint import safetensors
from zoo.checkpoint.integrity import Reading, bytes_of
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.utils.atomic import flush


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    tensors = {str(i): torch.randn(2**22) for i in range(round(given.gigabytes * 1e9 / 2**24))}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        file = Path(folder, "model.safetensors")

        def save() -> None:
            write_tensors(file, tensors, {})
            flush(file)

        for _ in range(given.rounds):
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
