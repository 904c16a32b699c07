"""The base class of loggers, which receive every record of a run's metrics.jsonl in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from zoo.config.registry import Config
from zoo.utils.errors import ConfigError
from zoo.utils.extras import install
from zoo.utils.run_folder import Record
from zoo.utils.untyped import Json, JsonObject


class Logger(ABC):
    """An open log of one session of a run. Only the main rank has one."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record.

        Args:
            record: a line of metrics.jsonl; `scalars` flattens its values.
        """

    @abstractmethod
    def close(self) -> None:
        """Write buffered records and close the log; called when the session ends for any reason."""


class LoggerConfig(Config):
    """The settings of a logger, and the method that opens it.

    Attributes:
        package: the package that the logger needs, which is also the name of zoo's extra for it.
    """

    package: ClassVar[str | None] = None

    def check(self) -> None:
        """Check, before any data is prepared, that the logger can be used on this machine.

        Raises:
            ConfigError: The package that the logger needs is not installed.
        """
        if self.package and find_spec(self.package) is None:
            raise ConfigError(
                f"train.loggers: {self.package} is not installed; expected: {install(self.package)}"
            )

    @abstractmethod
    def open(self, folder: Path, config: JsonObject, kept: Sequence[Record]) -> Logger:
        """Open the log of a session.

        Args:
            folder: the run folder.
            config: the resolved configuration of the run, as plain data.
            kept: the records up to the checkpoint that the session starts from. The log of an earlier
                session may go further than the checkpoint, or may be missing; when this method returns,
                the log holds these records and nothing after them.

        Raises:
            ConfigError: The log cannot be opened.
        """
        raise NotImplementedError


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record by their paths: `train/loss`, `monitor/matrices/read_out.matrix.weight/norm`.

    Args:
        record: a line of metrics.jsonl; texts, lists, booleans and nulls are left out.
    """
    return dict(_numbers(record["kind"], {k: v for k, v in record.items() if k not in ("kind", "step")}))


def _numbers(path: str, value: Json) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(f"{path}/{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
