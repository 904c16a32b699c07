"""metrics.jsonl: one JSON object per line, appended while training, cut back when a run resumes.

Every line has `kind` (size, train, validation, monitor, diagnose, spike, diverged) and `step`, the number of
optimizer steps done; docs/run-folders.md lists the other keys. Values that a second run does not reproduce
are under `timing`; all others are equal bit for bit. A number that is not finite is null.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from zoo.config.registry import require_instance
from zoo.run.config import plain
from zoo.run.job import Job
from zoo.run.loggers import Logger
from zoo.train.records import finite, json_line
from zoo.train.spikecontrol import SpikeControl
from zoo.train.start import Start
from zoo.utils.atomic import explained, write_text
from zoo.utils.run_folder import Record, RunFolder
from zoo.utils.untyped import Json

log = logging.getLogger("zoo")


class MetricsLog:
    """Writes the metrics.jsonl of a session, on the main rank; on other ranks it does nothing."""

    def __init__(
        self, run: RunFolder | None, start: Start, job: Job | None = None, shown: Logger | None = None
    ) -> None:
        """Create the log; the file is opened when the context is entered.

        Args:
            run: the run folder; None: nothing is written.
            start: where the session starts; lines after its checkpoint are dropped.
            job: the run, whose loggers get every record as well; None: no loggers.
            shown: a logger that shows the records of this session on the terminal; None: they are not shown.
        """
        self._run, self._start, self._job = run, start, job
        self._loggers: list[Logger] = [] if shown is None else [shown]
        self._file: TextIO | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._run is not None:
            path = self._run.metrics
            earlier, rollbacks = self._earlier(self._run)
            kept: list[Record] = finite([*earlier, *rollbacks])  # earlier versions wrote NaN
            write_text(path, "".join(map(json_line, kept)))
            for logger in self._loggers:  # which shows what is new
                for record in rollbacks:
                    logger.write(record)
            with ExitStack() as stack:
                self._file = stack.enter_context(path.open("a", encoding="utf-8"))
                if self._job is not None:
                    config = plain(self._job.config)
                    for settings in self._job.train.loggers:
                        opened = settings.open(self._run.path, config, kept)
                        logger = require_instance(type(settings), "open", opened, Logger)
                        self._loggers.append(stack.enter_context(closing(logger)))
                self._open = stack.pop_all()
        return self

    def _earlier(self, run: RunFolder) -> tuple[list[Record], list[Record]]:
        """The lines that belong to the steps before the session, and those of rollbacks that are new."""
        start = self._start
        if start.checkpoint is None:
            return [], []
        if not run.metrics.exists():
            log.warning("%s: is missing; it begins anew with step %d", run.metrics, start.step)
            return [], []
        # A rollback is kept although its step is later than the checkpoint that the run went back to.
        earlier = run.read_metrics(mended_after=start.step)
        kept = [r for r in earlier if r["step"] <= start.step or r.get("action") == "rollback"]
        kept = [r for r in kept if r["kind"] != "diverged"]  # The session tries these steps again.
        if start.owes_evaluation:  # It may be logged already, if the session was killed before it was saved.
            kept = [r for r in kept if (r["kind"], r["step"]) != ("validation", start.step)]
        logged = sum(record.get("action") == "rollback" for record in kept)
        # The last rollback is in the checkpoint only: the session ended with it.
        missing = SpikeControl.rollback_records(start.checkpoint)[logged:]
        return kept, [{"kind": "spike", "step": start.step, **spike} for spike in missing]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._open.close()
        except OSError:  # the line that could not be written is in the file's buffer still
            if error is None:
                raise

    def write(self, kind: str, step: int, **values: Json) -> None:
        """Append a line and flush it to the operating system.

        Raises:
            CheckpointError: The file cannot be written, for instance because the disk is full.
        """
        if self._file is not None:
            record: Record = finite({"kind": kind, "step": step, **values})
            with explained(Path(self._file.name)):
                self._file.write(json_line(record))
                self._file.flush()
            for logger in self._loggers:
                logger.write(record)

    def flush(self) -> None:
        """Write all lines to disk, so that no checkpoint is ahead of the file.

        Raises:
            CheckpointError: The file cannot be written: a network's file system may notice only here that the
                disk is full.
        """
        if self._file is not None:
            with explained(Path(self._file.name)):
                os.fsync(self._file.fileno())
