"""Cells in processes of their own, and what came of them: written at once, and kept for the next call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from zoo.utils.atomic import write_text

LONGEST_ERROR = 300
CUT = "not done after"


@dataclass(frozen=True)
class Record:
    """The result of a cell.

    Attributes:
        seconds: seconds until the process of the cell ended.
        figures: the figures that the process measured; empty where it failed.
        error: the reason why the process failed; empty where it did not.
    """

    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether the time was over before it had ended."""
        return self.error.startswith(CUT)


def attempt(command: Sequence[str], limit: float) -> Record:
    """Run a command in a process of its own, and read the JSON of its last line.

    Args:
        command: what is run, in the folder of the project.
        limit: seconds after which the process and its children are ended.
    """
    start = time.monotonic()
    with held_back(signal.SIGTERM) as release:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=ROOT,
            start_new_session=True,
        )
        with process:
            return _ended(process, start, limit, release)


@contextmanager
def held_back(number: signal.Signals) -> Iterator[Callable[[], None]]:
    """Within a `with` block, a signal waits until the function that the block gets is called.

    A signal that came while a process is being started would leave the process behind.
    """
    came: list[int] = []
    handler = signal.signal(number, lambda number, _: came.append(number))

    def release() -> None:
        signal.signal(number, handler)
        for earlier in came:
            signal.raise_signal(earlier)

    try:
        yield release
    finally:
        signal.signal(number, handler)


def _ended(process: subprocess.Popen[str], start: float, limit: float, release: Callable[[], None]) -> Record:
    """The record of a process, which ends with this function, whatever ends it."""
    try:
        release()
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        error = f"{CUT} {limit:g} s"
    else:
        error = "" if process.returncode == 0 else f"status {process.returncode}: {_last_line(err or out)}"
    finally:
        with suppress(ProcessLookupError):  # the compiler's workers, which it has started, too
            os.killpg(process.pid, signal.SIGKILL)
    seconds = round(time.monotonic() - start, 1)
    if error:
        return Record(seconds, error=error)
    try:
        return Record(seconds, json.loads(out.splitlines()[-1]))
    except (IndexError, ValueError):
        return Record(seconds, error=f"no figures: {_last_line(out)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST_ERROR] if lines else "it said nothing"


SAME = ("gpu", "python", "torch", "tiny")
"""What the machines of a file have in common; they may differ in their processors."""


class Records:
    """The records of machines of one kind, in a file that each new one replaces.

    Attributes:
        machine: what they were measured on; of what differs all values.
        cells: the records by the keys of their cells.
    """

    def __init__(self, file: Path, machine: Mapping[str, Any]) -> None:
        """Read those of earlier calls.

        Args:
            file: JSON; it need not exist.
            machine: the present one.

        Raises:
            SystemExit: the file is of another GPU, or of other versions.
        """
        self.machine, self._file = dict(machine), file
        self.cells: dict[str, Record] = {}
        if not file.exists():
            return
        known = json.loads(file.read_text(encoding="utf-8"))
        if any(known["machine"].get(key) != self.machine.get(key) for key in SAME):
            raise SystemExit(
                f"{file} is of another machine: {known['machine']}; expected {self.machine}. Choose a --name"
            )
        for key, value in self.machine.items():
            values = str(known["machine"].get(key, value)).split(" or ")
            if str(value) not in values:
                self.machine[key] = " or ".join([*values, str(value)])
            elif len(values) > 1:
                self.machine[key] = " or ".join(values)
        self.cells = {key: Record(**record) for key, record in known["cells"].items()}

    def add(self, key: str, record: Record) -> None:
        """Keep a record, on the disk too."""
        self.cells[key] = record
        cells = {key: asdict(record) for key, record in self.cells.items()}
        write_text(self._file, json.dumps({"machine": self.machine, "cells": cells}, indent=1) + "\n")


def python(module: str, *arguments: str) -> list[str]:
    """The command of a module of this project, in the present Python."""
    return [sys.executable, "-m", module, *arguments]
