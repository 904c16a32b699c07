"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from zoo.config.registry import LOGGERS
from zoo.config.yaml import dump_yaml
from zoo.run.loggers.base import Logger, LoggerConfig, scalars
from zoo.utils.atomic import remove
from zoo.utils.run_folder import Record
from zoo.utils.untyped import JsonObject


class TensorBoardLogger(Logger):
    """Writes event files with a scalar for every number, at the record's step."""

    def __init__(self, folder: Path, config: JsonObject, kept: Sequence[Record]) -> None:
        """Rewrite the event files up to the checkpoint, so that no step is in them twice."""
        from torch.utils.tensorboard import SummaryWriter

        remove(folder)
        self._writer = SummaryWriter(folder)
        self._writer.add_text("config", f"```yaml\n{dump_yaml(dict(config))}```")
        for record in kept:
            self.write(record)

    def write(self, record: Record) -> None:
        """Add every number of the record as a scalar."""
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag, value, record["step"])

    def close(self) -> None:
        """Write buffered records and close the event file."""
        self._writer.close()


@LOGGERS.register
class TensorBoard(LoggerConfig):
    """TensorBoard event files in RUN/tensorboard; view them with `tensorboard --logdir RUN`."""

    package: ClassVar[str] = "tensorboard"
    type: Literal["tensorboard"] = "tensorboard"

    def open(self, folder: Path, config: JsonObject, kept: Sequence[Record]) -> Logger:
        """Open RUN/tensorboard."""
        return TensorBoardLogger(folder / "tensorboard", config, kept)
