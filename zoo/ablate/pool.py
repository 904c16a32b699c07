"""Worker processes: a fixed number at a time, each with its share of the cores or with a GPU of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from zoo.ablate.plan import PlannedRun
from zoo.ablate.worker import WORKER_LOCK, WorkerTask, execute_task
from zoo.config.plugins import sources
from zoo.run.config import plain
from zoo.run.job import Job
from zoo.utils.errors import ZooError

THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def worker_count(workers: int | None) -> int:
    """The number of workers: as given, or one per GPU, or one.

    Raises:
        ZooError: the number is less than one.
    """
    if workers is not None and workers < 1:
        raise ZooError(f"sweep: --workers {workers}: expected at least 1")
    return workers or max(1, torch.cuda.device_count())


class Pool:
    """The workers of a sweep."""

    def __init__(self, workers: int, out: Path, errors: Path) -> None:
        """Prepare the pool without starting a process.

        Args:
            workers: the number of runs at a time.
            out: the folder of the sweeps.
            errors: the folder for the tracebacks of failed runs.
        """
        # A process that is forked from one with the imports starts at once. CUDA does not survive a fork.
        method = "spawn" if torch.cuda.device_count() else "forkserver"
        self._context: Any = multiprocessing.get_context(method)
        self._context.set_forkserver_preload(["zoo.ablate.worker", "torch._dynamo"])
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = int(os.environ.get(THREADS, max(1, cores // workers)))
        self._lock, self._errors = out / WORKER_LOCK, errors
        self._slots: list[tuple[PlannedRun, BaseProcess] | None] = [None] * workers

    @property
    def free(self) -> int:
        """The number of runs that can be started now."""
        return self._slots.count(None)

    @property
    def running(self) -> list[str]:
        """The ids of the runs that are being trained."""
        return [slot[0].id for slot in self._slots if slot is not None]

    def start(self, run: PlannedRun) -> None:
        """Start a run in a free slot."""
        index = self._slots.index(None)
        error_file = self._error_file(run)
        error_file.unlink(missing_ok=True)
        task = WorkerTask(
            config=plain(run.config),
            plugins=sources(),
            until=run.until,
            lock=self._lock,
            error_file=error_file,
            threads=self._threads,
            environment={**os.environ, THREADS: str(self._threads), **_gpu(run, index)},
        )
        process = self._context.Process(target=execute_task, args=(task,))
        process.start()
        self._slots[index] = (run, process)

    def ended(self, timeout: float) -> Iterator[tuple[PlannedRun, str | None]]:
        """Wait for runs to end.

        Args:
            timeout: seconds to wait at most.

        Yields:
            Each run that has ended, and if it failed its error in one line.
        """
        wait([slot[1].sentinel for slot in self._slots if slot is not None], timeout)
        for index, slot in enumerate(self._slots):
            if slot is not None and not slot[1].is_alive():
                run, process = slot
                process.join()
                self._slots[index] = None
                yield run, self._error(run, process.exitcode or 0)

    def stop(self) -> None:
        """Ask all workers to save their runs and stop."""
        for slot in self._slots:
            if slot is not None:
                slot[1].terminate()

    def _error_file(self, run: PlannedRun) -> Path:
        return self._errors / f"{run.id}.txt"

    def _error(self, run: PlannedRun, status: int) -> str | None:
        if status == 0:
            return None
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        file = self._error_file(run)
        lines = file.read_text(encoding="utf-8").strip().splitlines() if file.is_file() else []
        return lines[-1].removeprefix("zoo.utils.errors.") if lines else f"ended with status {status}"


def _gpu(run: PlannedRun, index: int) -> dict[str, str]:
    """The environment variable that gives a worker its GPU; empty if the run uses none."""
    count = torch.cuda.device_count()
    if not count or Job.of(run.config).train.device not in ("auto", "cuda"):
        return {}
    visible = os.environ.get(VISIBLE)
    names = visible.split(",") if visible else [str(i) for i in range(count)]
    return {VISIBLE: names[index % len(names)]}
