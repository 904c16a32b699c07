"""A worker: a process that trains one run after the other.

It ends with the first run that fails, so that a failure cannot affect the others. The runs that it is given
have one shape (`shape`), so that what torch.compile made for the first serves all of them.
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
from typing import Any

import torch

from zoo.ablate.outcome import write_record
from zoo.ablate.trunk import train_with_branches
from zoo.config.plugins import line_in_plugin, load_plugin
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.atomic import write_text
from zoo.utils.errors import DivergenceError, ZooError
from zoo.utils.lock import locked

WORKER_LOCK = ".workers"
"""The name of the lock in `out` that all workers share."""


@dataclass(frozen=True)
class WorkerTask:
    """A run that a worker has to train.

    Attributes:
        config: of the run, as plain data: the classes of plugins do not exist before they are imported.
        plugins: the plugins to import first, for `load_plugin`.
        until: the step that the run has to reach.
        branches: configurations of runs that begin with the first steps of this one, and how many.
        lock: the lock to share meanwhile.
        error_file: where to write the traceback of a failure.
    """

    config: dict[str, Any]
    plugins: tuple[str, ...]
    until: int
    branches: tuple[tuple[dict[str, Any], int], ...]
    lock: Path
    error_file: Path


def work(tasks: Connection, cores: int, environment: dict[str, str]) -> None:
    """Train the runs that are sent, one after the other, and answer True after each, while the sweep lives.

    If a run fails, its error file is written and the process exits with status 1.

    Args:
        tasks: where the `WorkerTask`s come from; None ends the process.
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
            _execute(task)
            tasks.send(True)
    except EOFError:
        return
    except KeyboardInterrupt:
        sys.exit(1)


def _execute(task: WorkerTask) -> None:
    """Train a run, or resume it; if it fails, write the error file and exit with status 1."""
    try:
        with locked(task.lock, "another process has it", shared=True, timeout=60):
            _train(task)
    except Exception as error:
        text = traceback.format_exc()
        if line := line_in_plugin(error):
            text += f"{line}: {type(error).__name__}: {error}\n"
        write_text(task.error_file, text)
        sys.exit(1)


def _train(task: WorkerTask) -> None:
    _forget_peak_memory()
    for plugin in task.plugins:
        load_plugin(plugin)
    config = load_config(task.config)
    folder = Job.of(config).folder
    branches = [(load_config(branch), step) for branch, step in task.branches]
    try:
        if not train_with_branches(config, branches, task.until):
            return
        result = train(config, resume=folder.exists, until=task.until)
    except DivergenceError as error:
        write_record(folder.path, error=str(error).split(";")[0])
        return
    if result.validation is None and result.step:
        raise ZooError("there is no validation loss; a sweep compares them: hold some data out")
    if result.finished:
        write_record(folder.path)


def _forget_peak_memory() -> None:
    """Let the peak of the resident memory begin anew, which is logged for each run (Linux, see proc(5))."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _end_with_parent() -> None:
    """Wait until the sweep has ended, which may have been killed; then save and stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
