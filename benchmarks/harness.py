"""How everything here is measured.

A process per contender, kept alive; one computes at a time, in the order A B C, C B A, ...; a
contender's time in a round is the median of its turn. A ratio is taken inside a round, where both
sides met the same neighbours on the machine, and shown as the median (min-max) over the rounds.
All contenders run under the same allocator settings and thread count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"

KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
"""glibc: do not hand freed activations back to the kernel, only to fault them in again."""


@dataclass
class Contender:
    """A process that measures one thing whenever it is asked to.

    Attributes:
        name: what is measured.
        process: the process, which reads a number of repetitions per line and answers with a JSON list of
            seconds.
        about: the facts for the table that the process reported when it was ready.
        rounds: the median of each round, in seconds per repetition.
    """

    name: str
    process: subprocess.Popen[str]
    about: dict[str, Any]
    rounds: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, arguments: Sequence[str], keep_memory: bool) -> Contender:
        """Start ``python -m arguments`` and wait until it is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(KEEP_MEMORY if keep_memory else {})},
        )
        contender = cls(name, process, {})
        contender.about = contender.answer()
        return contender

    def answer(self) -> Any:
        """The process's next line, decoded.

        Raises:
            RuntimeError: it ended instead.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: ended with status {self.process.wait()}")
        return json.loads(line)

    def measure(self, repetitions: int) -> list[float]:
        """Seconds of each of `repetitions` repetitions."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{repetitions}\n")
        self.process.stdin.flush()
        seconds: list[float] = self.answer()
        return seconds

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(about: Mapping[str, Any], repeat: Callable[[], float]) -> None:
    """The other side of a `Contender`: say what this is, then measure as often as asked.

    Args:
        about: facts for the table.
        repeat: a function that runs once and returns the seconds that it took.
    """
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        print(json.dumps([repeat() for _ in range(int(line))]), flush=True)


def interleave(contenders: Sequence[Contender], rounds: int, repetitions: int, warmup: int = 1) -> None:
    """Measure all contenders in turns, forwards and backwards; the medians end in `rounds`.

    Args:
        contenders: the contenders, whose processes have been started.
        rounds: number of rounds.
        repetitions: number of repetitions per turn.
        warmup: number of repetitions at the start of a turn that do not count.
    """
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            seconds = contender.measure(warmup + repetitions)[warmup:]
            contender.rounds.append(statistics.median(seconds))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)


def fastest(contenders: Sequence[Contender]) -> Contender:
    """The one with the lowest median."""
    return min(contenders, key=lambda c: statistics.median(c.rounds))


@dataclass(frozen=True)
class Ratio:
    """Time of one side over the time of the other, round by round."""

    what: str
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, what: str, numerator: Contender, denominator: Contender) -> Ratio:
        """The ratio of two contenders of one run."""
        ratios = [a / b for a, b in zip(numerator.rounds, denominator.rounds, strict=True)]
        return cls(
            f"{what} ({numerator.name} / {denominator.name})",
            statistics.median(ratios),
            min(ratios),
            max(ratios),
        )

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the figures were measured on: processor, memory, versions; no names of hosts or paths."""
    import torch

    facts: dict[str, Any] = {
        "cpu": _proc("cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bf16": next(
            (f for f in ("amx_bf16", "avx512_bf16") if f in _proc("cpuinfo", "flags").split()), "none"
        ),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def described(device: str = "cpu") -> str:
    """The facts of `machine` as a line of a page."""
    return ", ".join(f"{key} {value}" for key, value in machine(device).items())


def peak_memory() -> int:
    """The most memory this process has held, in MiB (0 where the kernel does not say)."""
    return int(_proc("self/status", "VmHWM").removesuffix(" kB") or 0) // 1024


def _proc(file: str, key: str) -> str:
    """The first value of `key` in a file of Linux's /proc, or an empty string."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A markdown table with the keys of the first row as its head."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row.get(key, "")) for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(
    name: str,
    title: str,
    command: str,
    contenders: Sequence[Contender],
    rows: Sequence[Mapping[str, Any]],
    ratios: Sequence[Ratio],
    device: str = "cpu",
) -> None:
    """Write docs/results/<name>.json and .md, and print the latter.

    Args:
        name: the name of the files, without their suffix.
        title: the heading of the page.
        command: the command that produces the page.
        contenders: all contenders that were measured.
        rows: the table, one row per contender.
        ratios: the ratios that are claimed.
        device: "cpu" or "cuda".
    """
    raw = {
        "contenders": {c.name: {**c.about, "seconds": c.rounds} for c in contenders},
        "ratios": {r.what: {"median": r.median, "min": r.low, "max": r.high} for r in ratios},
    }
    claims = [{"time ratio": r.what, "median (min-max)": str(r)} for r in ratios]
    write_page(name, title, command, raw, [rows, claims], device)


def write_page(
    name: str,
    title: str,
    command: str,
    raw: Mapping[str, Any],
    tables: Sequence[Sequence[Mapping[str, Any]]],
    device: str = "cpu",
) -> None:
    """Write docs/results/<name>.json and .md, and print the latter.

    Args:
        name: the name of the files, without their suffix.
        title: the heading of the page.
        command: the command that produces the page.
        raw: further entries of the JSON file.
        tables: the rows of each table.
        device: "cpu" or "cuda".
    """
    raw = {"command": command, "machine": machine(device), **raw}
    page = "\n\n".join([f"# {title}", f"`{command}`", described(device), *map(table, tables)])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(page + "\n")
    print(page)


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    options.add_argument("--name", help="of the files in docs/results")
    options.add_argument(
        "--keep-memory",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep freed memory in the process, for all contenders alike",
    )
    return options
