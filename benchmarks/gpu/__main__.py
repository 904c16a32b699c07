"""Everything that a GPU is needed for, in half an hour, into docs/results/gpu-NAME.json and .md.

    python -m benchmarks.gpu                            # or make gpu
    python -m benchmarks.gpu --only generation update   # cells whose names contain one of the words
    python -m benchmarks.gpu --minutes 9                # one of several commands with limits of their own
    python -m benchmarks.gpu --tiny --device cpu        # whether it runs

A cell is measured in a process of its own with a limit of time, and written down before the next one
begins. A cell that fails is a line of the page. When the minutes are over, the cell at work is left to the
next call. A second call measures what is missing, with --again what failed too.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.cells import CELLS
from benchmarks.gpu.page import TESTS, page
from benchmarks.gpu.records import Records, attempt, python
from benchmarks.harness import RESULTS, machine
from zoo.utils.atomic import write_text

KEYS = (TESTS, *CELLS)


def command(key: str, device: str, tiny: bool) -> list[str]:
    """What measures a cell, or runs the tests."""
    if key == TESTS:
        return python("benchmarks.gpu.tests")
    return python("benchmarks.gpu.measure", key, "--device", device, *(["--tiny"] if tiny else []))


def stop(number: int, _: object) -> None:
    """End at a signal as at Ctrl-C, so that no process of a cell goes on without this one."""
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps: to try it out")
    parser.add_argument("--minutes", type=float, default=30, help="after which it ends")
    parser.add_argument("--limit", type=float, default=180, help="seconds for a cell, twice for tests")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="cells with such a name")
    parser.add_argument("--again", action="store_true", help="also the cells that failed before")
    parser.add_argument("--name", help="of the files; default: that of the GPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the files")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU here; --tiny --device cpu tries it out without one")
    if given.device == "cpu" and not given.tiny:
        parser.error("--device cpu: the models are too large for a processor; expected --tiny as well")
    chosen = [key for key in KEYS if any(word in key for word in given.only)]
    if not chosen:
        parser.error(f"--only {' '.join(given.only)}: no such cell; there are {', '.join(KEYS)}")
    here = {**machine(given.device), **({"tiny": True} if given.tiny else {})}
    name = f"gpu-{given.name or re.sub(r'[^a-z0-9]+', '-', here.get('gpu', 'none').lower())}"
    records = Records(given.out / f"{name}.json", here)
    line = " ".join(["python -m benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)])
    end = time.monotonic() + 60 * given.minutes
    for number, key in enumerate(chosen, start=1):
        before = records.cells.get(key)
        if before is not None and not (before.error and given.again):
            continue
        left, limit = end - time.monotonic(), given.limit * (2 if key == TESTS else 1)
        record = attempt(command(key, given.device, given.tiny), min(limit, left)) if left > 0 else None
        if record is None or (record.is_cut and left < limit):
            print(f"{given.minutes:g} minutes are over; the same command goes on here", file=sys.stderr)
            break
        records.add(key, record)
        write_text(given.out / f"{name}.md", page(records.machine, records.cells, line))
        print(f"{number}/{len(chosen)} {key}: {record.error or f'{record.seconds:g} s'}", flush=True)
    print(page(records.machine, records.cells, line))


if __name__ == "__main__":
    main()
