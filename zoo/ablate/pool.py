"""Worker processes: so many at a time, each with its share of the cores or with a GPU of its own."""

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

from zoo.ablate.plan import Planned
from zoo.ablate.worker import WORKERS, Work, work
from zoo.config.plugins import sources
from zoo.run.config import plain
from zoo.run.job import Job

THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def usual_workers() -> int:
    """One per GPU, or one."""
    return max(1, torch.cuda.device_count())


class Pool:
    """The workers of a sweep."""

    def __init__(self, workers: int, out: Path, reports: Path) -> None:
        """Prepare; nothing is started yet.

        Args:
            workers: runs at a time.
            out: folder of the sweeps.
            reports: folder for what goes wrong.
        """
        # Forked by a process that has imported what they need, workers start at once. GPUs bear no fork.
        method = "spawn" if torch.cuda.device_count() else "forkserver"
        self._context: Any = multiprocessing.get_context(method)
        self._context.set_forkserver_preload(["zoo.ablate.worker", "torch._dynamo"])
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = int(os.environ.get(THREADS, max(1, cores // workers)))
        self._out, self._reports = out, reports
        self._slots: list[tuple[Planned, BaseProcess] | None] = [None] * workers

    @property
    def free(self) -> int:
        """How many more runs can be started."""
        return self._slots.count(None)

    @property
    def running(self) -> list[str]:
        """The ids of the runs at work."""
        return [slot[0].id for slot in self._slots if slot is not None]

    def start(self, run: Planned) -> None:
        """Start a run where there is room."""
        index = self._slots.index(None)
        environment = {**os.environ, THREADS: str(self._threads), **self._gpu(run, index)}
        lock = self._out / WORKERS
        task = Work(
            plain(run.config), sources(), run.until, lock, self.report(run.id), self._threads, environment
        )
        self.report(run.id).unlink(missing_ok=True)
        process = self._context.Process(target=work, args=(task,))
        process.start()
        self._slots[index] = (run, process)

    def ended(self, seconds: float) -> Iterator[tuple[Planned, str | None]]:
        """Wait for runs to end, at most so long.

        Yields:
            Runs that have ended, and why if they failed.
        """
        wait([slot[1].sentinel for slot in self._slots if slot is not None], seconds)
        for index, slot in enumerate(self._slots):
            if slot is not None and not slot[1].is_alive():
                slot[1].join()
                self._slots[index] = None
                yield slot[0], self._error(slot[0].id, slot[1].exitcode or 0)

    def stop(self) -> None:
        """Ask all workers to save and stop."""
        for slot in self._slots:
            if slot is not None:
                slot[1].terminate()

    def report(self, run: str) -> Path:
        """Where the traceback of a failed run is."""
        return self._reports / f"{run}.txt"

    def _gpu(self, run: Planned, index: int) -> dict[str, str]:
        """Its GPU, if the run takes any that there is."""
        count = torch.cuda.device_count()
        if not count or Job.of(run.config).train.device not in ("auto", "cuda"):
            return {}
        seen = os.environ.get(VISIBLE)
        names = seen.split(",") if seen else [str(i) for i in range(count)]
        return {VISIBLE: names[index % len(names)]}

    def _error(self, run: str, status: int) -> str | None:
        if status == 0:
            return None
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        report = self.report(run)
        lines = report.read_text(encoding="utf-8").strip().splitlines() if report.is_file() else []
        return lines[-1].removeprefix("zoo.utils.errors.") if lines else f"ended with status {status}"
