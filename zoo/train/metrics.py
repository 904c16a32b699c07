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
from zoo.train.folder import Start
from zoo.utils.atomic import explained, write_file
from zoo.utils.errors import ZooError

FILE = "metrics.jsonl"


class MetricsLog:
    """The metrics.jsonl of a run that is being trained; on ranks that do not write, nothing."""

    def __init__(self, run: Path | None, start: Start, job: Job | None = None) -> None:
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
            path = self._run / FILE
            # That the run went back belongs to its record, wherever it is now.
            kept = [
                record
                for record in (read_metrics(self._run) if path.exists() and self._start.checkpoint else ())
                if record["step"] <= self._start.step or record.get("action") == "rollback"
            ]
            lines = "".join(json.dumps(record) + "\n" for record in kept)
            write_file(path, lambda partial: partial.write_text(lines, encoding="utf-8"))
            with ExitStack() as stack:
                self._file = stack.enter_context(path.open("a", encoding="utf-8"))
                if self._job is not None:
                    config = plain(self._job.config)
                    for settings in self._job.train.loggers:
                        logger = stack.enter_context(closing(settings.open(self._run, config, kept)))
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


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All lines of a run; a last line that was being written when the run was killed is left out.

    Args:
        run: the run folder.

    Raises:
        ZooError: no such file, or a line that zoo did not write.
    """
    path = run / FILE
    if not path.is_file():
        raise ZooError(f"{path}: no such file; expected a run folder made by `zoo train`")
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            record["kind"], record["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise ZooError(
                f'{path}:{number}: expected {{"kind": ..., "step": ...}}, got {line[:60]!r}'
            ) from error
        records.append(record)
    return records
