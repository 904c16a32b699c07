"""Worker processes: a fixed number at a time, each with its share of the cores or with a GPU of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from zoo.ablate.compiling import shape_of
from zoo.ablate.plan import PlannedRun
from zoo.ablate.scoring import TaskScoring
from zoo.ablate.worker import WORKER_LOCK, SentConfig, WorkerTask, work
from zoo.config.homes import HOMES
from zoo.config.plugins import sources
from zoo.run.job import Job
from zoo.utils.cores import cores
from zoo.utils.errors import ZooError

THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"

PRELOADED = ("zoo.ablate.worker", *(home for homes in HOMES.values() for home in homes))
"""What a worker imports: its own module, and those of the choices of a configuration."""

YIELDING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Environment in which idle threads of OpenMP sleep; by default they spin on cores that others need."""
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Environment in which a worker compiles in its own process. By default torch starts a pool of processes in
each worker, which compete for the cores of the others."""
UNUSED_GPU = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Environment in which torch finds GPUs without using CUDA, which does not survive a fork. The import of its
compiler looks for them."""
GRACE = 10.0
"""Seconds that an idle worker has to end by itself. If it were terminated, a semaphore of the compiler's
progress bar would remain, about which Python warns at the end of the sweep."""


def worker_count(workers: int | None) -> int:
    """The number of workers: the given one, or one per GPU, or one per core.

    A worker for each core trains small models faster than one with the threads of all cores.

    Raises:
        ZooError: The number is less than one.
    """
    if workers is not None and workers < 1:
        raise ZooError(f"sweep: --workers {workers}: expected at least 1")
    return workers or torch.cuda.device_count() or cores()


def _threads(workers: int) -> int:
    """The number of threads of a worker: the one that the user has set, or its share of the cores.

    OpenMP reads a list as the numbers of nested levels, of which torch has the first one, and an empty text
    as no number.

    Raises:
        ZooError: The user has set something else.
    """
    text = os.environ.get(THREADS, "").strip()
    if not text:
        return max(1, cores() // workers)
    outermost = text.partition(",")[0].strip()
    if not (outermost.isascii() and outermost.isdecimal() and int(outermost)):
        raise ZooError(f"sweep: {THREADS}: value {text!r}: expected a number of threads of at least 1")
    return int(outermost)


@dataclass
class _Worker:
    """A process that trains the runs of one shape, one after the other.

    Attributes:
        process: the process.
        tasks: our end of its connection.
        shape: the shape of its runs.
        run: the run that it is training; None: it is idle.
        compiled: whether it has ended a run, and therefore has the compiled graphs of its shape.
    """

    process: BaseProcess
    tasks: Connection
    shape: str
    run: PlannedRun | None = None
    compiled: bool = False

    def end(self) -> None:
        """Ask an idle worker to end by itself, so that it cleans up."""
        with suppress(OSError):  # the process has been killed
            self.tasks.send(None)
        self.tasks.close()


class Pool:
    """The processes that train the runs of a sweep."""

    def __init__(
        self,
        workers: int,
        out: Path,
        errors: Path,
        compiles: bool = False,
        scoring: TaskScoring | None = None,
    ) -> None:
        """Prepare the pool without starting a process.

        Args:
            workers: the number of runs at a time.
            out: the folder of the sweeps.
            errors: the folder for the tracebacks of failed runs.
            compiles: whether runs are compiled: the compiler is then imported once for all workers.
            scoring: the score of a task to measure for every run that has ended; None: there is none.

        Raises:
            ZooError: `THREADS` is set to something else than a number of threads.
        """
        # A fork of a process that has imported everything starts at once.
        forks = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
        method = "forkserver" if forks else "spawn"
        self._context: Any = multiprocessing.get_context(method)  # Any: its class depends on the method
        compiler = "torch._inductor.compile_fx" if compiles else "torch._dynamo"
        self._context.set_forkserver_preload([*PRELOADED, compiler])
        self._threads = _threads(workers)
        self._lock, self._errors, self._scoring = out / WORKER_LOCK, errors, scoring
        self._slots: list[_Worker | None] = [None] * workers
        self._shapes: dict[str, str] = {}

    @property
    def free(self) -> int:
        """The number of runs that can be started now."""
        return len(self._slots) - len(self.running)

    @property
    def running(self) -> list[str]:
        """The ids of the runs that are being trained."""
        return [worker.run.id for worker in self._slots if worker is not None and worker.run is not None]

    def has_worker_for(self, run: PlannedRun) -> bool:
        """Whether an idle worker has trained runs of the same shape, so that it need not be replaced."""
        shape = self._shape(run)
        return any(w is not None and w.run is None and w.shape == shape for w in self._slots)

    def holds_back(self, run: PlannedRun) -> bool:
        """Whether a run should wait, because another worker is compiling the graphs that it needs.

        It will find them in the compiler's cache, instead of compiling them a second time.
        """
        if not Job.of(run.config).train.compile:
            return False
        shape = self._shape(run)
        same = [worker for worker in self._slots if worker is not None and worker.shape == shape]
        return bool(same) and not any(worker.compiled or _trains(worker) for worker in same)

    def start(self, run: PlannedRun, branches: Sequence[PlannedRun] = ()) -> None:
        """Start a run, in the process of an earlier run of its shape if one is free.

        Args:
            run: the run.
            branches: runs that share its first steps.
        """
        error_file = self._error_file(run)
        error_file.unlink(missing_ok=True)
        worker = self._worker(run)
        worker.run = run
        begun = tuple((SentConfig.of(branch.config), branch.begins) for branch in branches if branch.begins)
        sent = SentConfig.of(run.config)
        task = WorkerTask(sent, sources(), run.until, begun, self._lock, error_file, self._scoring)
        with suppress(OSError):  # `ended` detects a process that has just been killed
            worker.tasks.send(task)

    def _worker(self, run: PlannedRun) -> _Worker:
        """An idle worker for the shape of a run, or a new one."""
        shape = self._shape(run)
        idle = [i for i, worker in enumerate(self._slots) if worker is None or worker.run is None]
        # First the workers of this shape, then empty slots, then workers of other shapes.
        index = min(idle, key=lambda i: (worker.shape != shape) * 2 if (worker := self._slots[i]) else 1)
        worker = self._slots[index]
        if worker is not None:
            if worker.shape == shape and worker.process.is_alive():
                return worker
            worker.end()
            worker.process.join(GRACE)
            worker.process.terminate()
            worker.process.join()
        ours, theirs = self._context.Pipe()
        environment = {**os.environ, THREADS: str(self._threads), **_gpu(run, index)}
        process = self._context.Process(target=work, args=(theirs, self._threads, environment))
        with _environment(YIELDING | COMPILING | UNUSED_GPU):  # read when the fork server loads the libraries
            process.start()
        theirs.close()
        worker = self._slots[index] = _Worker(process, ours, shape)
        return worker

    def ended(self, timeout: float) -> Iterator[tuple[PlannedRun, str | None]]:
        """Wait for runs to end.

        Args:
            timeout: seconds to wait at most.

        Yields:
            Each run that has ended, and the error in one line if it failed.
        """
        busy = [(i, w, w.run) for i, w in enumerate(self._slots) if w is not None and w.run is not None]
        ready = wait([source for _, w, _ in busy for source in (w.tasks, w.process.sentinel)], timeout)
        for index, worker, run in busy:
            if worker.tasks not in ready and worker.process.sentinel not in ready:
                continue
            worker.run = None
            if _has_answered(worker.tasks):
                worker.compiled = True
                yield run, None
            else:
                worker.process.join()
                self._slots[index] = None
                yield run, self._error(run, worker.process.exitcode or 0)

    def stop(self) -> None:
        """Ask all workers to save their runs and stop; idle ones end by themselves."""
        for worker in self._slots:
            if worker is None:
                continue
            if worker.run is None:
                worker.end()
            else:
                worker.process.terminate()

    def _shape(self, run: PlannedRun) -> str:
        if run.id not in self._shapes:
            self._shapes[run.id] = shape_of(run.config)
        return self._shapes[run.id]

    def _error_file(self, run: PlannedRun) -> Path:
        return self._errors / f"{run.id}.txt"

    def _error(self, run: PlannedRun, status: int) -> str | None:
        if status == 0:
            return None
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        file = self._error_file(run)
        lines = file.read_text(encoding="utf-8").strip().splitlines() if file.is_file() else []
        return lines[-1] if lines else f"ended with status {status}"


def _trains(worker: _Worker) -> bool:
    """Whether a worker has logged a training step of its run, so that compilation is done."""
    folder = None if worker.run is None else Job.of(worker.run.config).folder
    return folder is not None and any(line["kind"] == "train" for line in folder.read_last_metrics())


def _has_answered(tasks: Connection) -> bool:
    """Whether a worker has answered that its run has ended; otherwise the process has ended."""
    try:
        return tasks.poll() and bool(tasks.recv())
    except (EOFError, OSError):
        return False


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Within a `with` block, set those environment variables that the user has not set."""
    added = variables.keys() - os.environ.keys()
    os.environ.update({key: variables[key] for key in added})
    try:
        yield
    finally:
        for key in added:
            del os.environ[key]


def _gpu(run: PlannedRun, index: int) -> dict[str, str]:
    """The environment variable that gives a worker its GPU; empty if the run uses none."""
    count = torch.cuda.device_count()
    if not count or Job.of(run.config).train.device not in ("auto", "cuda"):
        return {}
    visible = os.environ.get(VISIBLE)
    names = visible.split(",") if visible else [str(i) for i in range(count)]
    return {VISIBLE: names[index % len(names)]}
