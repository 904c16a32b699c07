"""A run that is stopped and goes on with other numbers of ranks, against one of a single process.

    python -m benchmarks.resharding --ranks 8 3 1 8 --steps 80

Each number of ranks trains until its share of the steps is done, is stopped by SIGTERM and saves; the next
one resumes from its shards. All losses have to be those of one process, up to the order of sums.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.failures import CONTEXT, STOPPED, TOLERANCE, end, losses, reached, settings, start
from benchmarks.harness import machine
from zoo import load_model
from zoo.utils.run_folder import RunFolder


def resharded(folder: Path, ranks: list[int], steps: int, batch: int) -> dict[str, Any]:
    """Train on one process, and on these numbers of ranks; raises AssertionError where losses differ."""
    alone, moved = (settings(folder, name, steps, batch) for name in ("alone", "moved"))
    assert end(start(alone, 1), alone, within=3600) == [0]
    one, run = (RunFolder(folder / "runs" / name) for name in ("alone", "moved"))
    stops = []
    for number, count in enumerate(ranks, start=1):
        processes = start(moved, count)
        if number < len(ranks):
            while reached(run) < number * steps // len(ranks) and all(p.is_alive() for p in processes):
                time.sleep(0.05)
            for process in processes:
                os.kill(process.pid or 0, signal.SIGTERM)
        statuses = end(processes, moved, within=3600)
        assert statuses == [STOPPED if number < len(ranks) else 0] * count, (count, statuses)
        stops.append(reached(run))
    expected, found = losses(one), losses(run)
    assert [*found] == [*expected] == [*range(1, steps + 1)]
    difference = max(abs(found[step] - expected[step]) for step in expected)
    assert difference <= TOLERANCE, difference
    pairs = zip(load_model(one.path).parameters(), load_model(run.path).parameters(), strict=True)
    return {
        "ranks": ranks,
        "last step of each": stops,
        "largest difference of a loss": difference,
        "first and last loss": [expected[1], expected[steps]],
        "largest difference of a weight": max((a - b).abs().max().item() for a, b in pairs),
    }


def main() -> None:
    """Train both, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 3, 1, 8])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=24, help="examples; each number of ranks divides it")
    given = parser.parse_args()
    CONTEXT.set_forkserver_preload(["zoo.commands.cli", "zoo.train.run", "torch._dynamo"])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = resharded(Path(folder), given.ranks, given.steps, given.batch)
    print(json.dumps({**found, **machine()}))


if __name__ == "__main__":
    main()
