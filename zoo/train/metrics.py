"""metrics.jsonl: one JSON object per line, appended while training, cut back when a run resumes.

Every line has `kind` (size, train, validation, monitor, diagnose) and `step`, the number of optimizer steps
done. What a second run would not reproduce is under `timing`; all else is equal bit for bit.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from zoo.run.config import plain
from zoo.run.job import Job
from zoo.run.loggers import Logger
from zoo.train.start import Start
from zoo.utils.atomic import explained, write_text
from zoo.utils.run_folder import RunFolder


class MetricsLog:
    """The metrics.jsonl of a run that is being trained; on ranks that do not write, nothing."""

    def __init__(self, run: RunFolder | None, start: Start, job: Job | None = None) -> None:
        """Prepare.

        Args:
            run: the run folder, or None to write nothing.
            start: where this session begins; lines after its checkpoint are dropped.
            job: names the loggers that get every record as well; None: there are none.
        """
        self._run, self._start, self._job = run, start, job
        self._loggers: list[Logger] = []
        self._file: TextIO | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._run is not None:
            path = self._run.metrics
            earlier = self._run.read_metrics() if path.exists() and self._start.checkpoint else []
            # That the run went back belongs to its record, wherever it is now.
            kept = [r for r in earlier if r["step"] <= self._start.step or r.get("action") == "rollback"]
            write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
            with ExitStack() as stack:
                self._file = stack.enter_context(path.open("a", encoding="utf-8"))
                if self._job is not None:
                    config = plain(self._job.config)
                    for settings in self._job.train.loggers:
                        logger = stack.enter_context(closing(settings.open(self._run.path, config, kept)))
                        self._loggers.append(logger)
                self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a line; it is with the system when this returns.

        Raises:
            CheckpointError: the system refuses, for instance because the disk is full.
        """
        if self._file is not None:
            record = {"kind": kind, "step": step, **values}
            with explained(Path(self._file.name)):
                self._file.write(json.dumps(record) + "\n")
                self._file.flush()
            for logger in self._loggers:
                logger.write(record)

    def flush(self) -> None:
        """Bring all lines to the disk, before a checkpoint relies on them."""
        if self._file is not None:
            os.fsync(self._file.fileno())
