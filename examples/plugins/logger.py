"""A logger: a CSV file of the validation losses, beside metrics.jsonl."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from zoo import LOGGERS, Logger, LoggerConfig

Record = dict[str, Any]


class CSVLog(Logger):
    """An open file; what comes before the checkpoint that a session starts from is written again."""

    def __init__(self, path: Path, kept: Sequence[Record]) -> None:
        self.file = path.open("w", encoding="utf-8")
        self.file.write("step,cross_entropy\n")
        for record in kept:
            self.write(record)

    def write(self, record: Record) -> None:
        """Receive a record of metrics.jsonl."""
        if record["kind"] == "validation":
            self.file.write(f"{record['step']},{record['cross_entropy']}\n")

    def close(self) -> None:
        """The session ends."""
        self.file.close()


@LOGGERS.register
class CSVLogger(LoggerConfig):
    """Writes the step and the validation loss of every evaluation into RUN/validation.csv."""

    type: Literal["csv"] = "csv"

    def open(self, folder: Path, config: Mapping[str, Any], kept: Sequence[Record]) -> Logger:
        """Open the log of a session in the run's folder."""
        return CSVLog(folder / "validation.csv", kept)
