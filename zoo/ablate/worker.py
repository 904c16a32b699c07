"""One run in a process of its own, so that nothing that happens to it happens to the others."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zoo.ablate.lock import locked
from zoo.ablate.outcome import write_record
from zoo.config.plugins import line_in_plugin, load_plugin
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.atomic import write_text
from zoo.utils.errors import DivergenceError, ZooError

WORKERS = ".workers"
"""A lock below `out` that every worker shares: while it is held, one is at work."""


@dataclass(frozen=True)
class Work:
    """What a worker has to do.

    Attributes:
        config: of the run, as plain data: the classes of plugins are not there before they are imported.
        plugins: what to import first, for `load_plugin`.
        until: the step it has to reach.
        lock: the lock to share meanwhile.
        report: where to write what went wrong.
        threads: of torch.
        environment: variables of the process.
    """

    config: dict[str, Any]
    plugins: tuple[str, ...]
    until: int
    lock: Path
    report: Path
    threads: int
    environment: Mapping[str, str]


def work(task: Work) -> None:
    """Train a run, or go on with it; the exit status is 1 if it failed, and `task.report` says why."""
    os.environ.update(task.environment)
    torch.set_num_threads(task.threads)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        with locked(task.lock, "another process has it", shared=True, patience=60):
            _train(task)
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception as error:
        text = traceback.format_exc()
        if line := line_in_plugin(error):
            text += f"{line}: {type(error).__name__}: {error}\n"
        write_text(task.report, text)
        sys.exit(1)


def _train(task: Work) -> None:
    for plugin in task.plugins:
        load_plugin(plugin)
    config = load_config(task.config)
    folder = Job.of(config).folder
    started = folder.exists
    if folder.path.exists() and not started:
        shutil.rmtree(folder.path)  # killed while it wrote its first file
    try:
        result = train(config, resume=started, until=task.until)
    except DivergenceError as error:
        write_record(folder.path, error=str(error).split(";")[0])
        return
    if result.validation is None:
        raise ZooError("there is no validation loss; a sweep compares them: hold some data out")
    if result.finished:
        write_record(folder.path)


def _die_with_parent() -> None:
    """Stop, saved, once the sweep is gone: it may have been killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
