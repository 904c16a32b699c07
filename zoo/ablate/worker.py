"""A worker: a process that trains one run after the other.

It ends with the first run that fails, so that a failure cannot affect other runs. All its runs have one shape
(`shape`), so that they share the graphs that torch.compile has made for the first one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import torch

from zoo.ablate.outcome import NO_VALIDATION, write_record
from zoo.ablate.scoring import TaskScoring
from zoo.ablate.trunk import train_with_branches
from zoo.config.plugins import line_in_plugin, load_plugin
from zoo.run.config import Origin, RunConfig, load_config, plain
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.atomic import write_text
from zoo.utils.errors import DivergenceError, ZooError, joined_message
from zoo.utils.lock import locked
from zoo.utils.untyped import JsonObject

WORKER_LOCK = ".workers"
"""The name of the lock in `out` that all workers share."""
LONGEST = 600
"""Largest number of characters of a message in the list of runs; the error file has the whole message."""


@dataclass(frozen=True)
class SentConfig:
    """A configuration in a form that can be sent to a worker before its plugins are imported.

    Attributes:
        fields: the configuration as plain data.
        origin: the places of its values, for messages.
    """

    fields: JsonObject
    origin: Origin

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Convert a configuration."""
        return cls(plain(config), config.origin)

    def load(self) -> RunConfig:
        """Restore the configuration."""
        return load_config(self.fields).written(self.origin)


@dataclass(frozen=True)
class WorkerTask:
    """A run that a worker has to train.

    Attributes:
        config: the configuration of the run.
        plugins: the plugins to import first, as arguments of `load_plugin`.
        until: the step that the run has to reach.
        branches: configurations of runs that share the first steps of this one, and the numbers of these
            steps.
        scoring: the score of a task to measure when the run has ended; None: there is none.
        lock: the lock to share during the task.
        error_file: the file for the traceback of a failure, with a summary in its last line.
    """

    config: SentConfig
    plugins: tuple[str, ...]
    until: int
    branches: tuple[tuple[SentConfig, int], ...]
    lock: Path
    error_file: Path
    scoring: TaskScoring | None = None


def work(tasks: Connection, cores: int, environment: dict[str, str]) -> None:
    """Train the runs that are sent, one after the other, and answer True after each, while the sweep lives.

    If a run fails, its error file is written and the process exits with status 1.

    Args:
        tasks: the connection for `WorkerTask`s; None ends the process.
        cores: the number of threads of torch.
        environment: environment variables of the process.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked process has the sweep's handler
    os.environ.update(environment)
    torch.set_num_threads(cores)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sweep = multiprocessing.parent_process()
    try:
        while (sweep is None or sweep.is_alive()) and (task := tasks.recv()) is not None:
            attempt(task)
            tasks.send(True)
    except (EOFError, ConnectionError):  # the sweep has ended or was killed
        return
    except KeyboardInterrupt:
        sys.exit(1)


def attempt(task: WorkerTask) -> None:
    """Train or resume a run; if it fails, write the error file and exit with status 1."""
    try:
        with locked(task.lock, "another process has it", shared=True, timeout=60):
            _train(task)
    except Exception as error:
        write_text(task.error_file, f"{traceback.format_exc()}{in_one_line(error)}\n")
        sys.exit(1)


def in_one_line(error: Exception) -> str:
    """An error and its notes in one line, after the line of the plugin that raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = "; ".join(lines)
    shown = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
    what = "; ".join([f"{type(error).__name__}: {shown}", *getattr(error, "__notes__", ())])
    return joined_message(line_in_plugin(error) or "", what)


def _train(task: WorkerTask) -> None:
    _forget_peak_memory()
    for plugin in task.plugins:
        load_plugin(plugin)
    config = task.config.load()
    folder = Job.of(config).folder
    branches = [(branch.load(), step) for branch, step in task.branches]
    try:
        if not train_with_branches(config, branches, task.until):
            return
        result = train(config, resume=folder.exists, until=task.until)
    except DivergenceError as error:
        write_record(folder.path, error=str(error).split(";")[0])
        return
    if result.validation is None and result.step:
        raise ZooError(NO_VALIDATION)
    if result.finished:
        if task.scoring is not None:
            task.scoring.record(folder, Job.of(config).train.device)
        write_record(folder.path)


def _forget_peak_memory() -> None:
    """Reset the peak of the resident memory, which is logged for each run (Linux, see proc(5))."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _end_with_parent() -> None:
    """Wait until the sweep has ended or was killed; then save and stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
