"""Weights & Biases: one of its runs for every run of zoo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from zoo.config.registry import LOGGERS
from zoo.run.loggers.base import Logger, LoggerConfig, scalars
from zoo.utils.atomic import remove
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import Record
from zoo.utils.untyped import JsonObject


class WandbLogger(Logger):
    """A run of Weights & Biases that continues through all sessions of a run of zoo."""

    def __init__(self, settings: Wandb, folder: Path, config: JsonObject, kept: Sequence[Record]) -> None:
        """Start the run in Weights & Biases, or continue it.

        The files of an offline run are rewritten up to the checkpoint. A run on the server continues after
        its last step: steps that it has already are not sent again. A run that the server does not have yet
        gets all records up to the checkpoint.

        Raises:
            ConfigError: The server cannot be reached or rejects this user.
        """
        import wandb

        offline = settings.mode == "offline"
        earlier = sorted((folder / "wandb").glob("*run-*-*"))
        named = re.search(r"-(\w+)$", earlier[-1].name) if earlier else None
        if offline:
            remove(folder / "wandb")
        try:
            self._run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                group=settings.group,
                tags=settings.tags,
                mode=settings.mode,
                dir=folder,
                name=folder.name,
                id=named[1] if named else None,
                resume="allow",
                config=dict(config),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"train.loggers: wandb does not start: {error}; expected a login (wandb login), "
                "or {type: wandb, mode: offline}"
            ) from error
        self._first = self._run.starting_step
        for record in kept if offline or self._first == 0 else ():
            self.write(record)

    def write(self, record: Record) -> None:
        """Add the numbers of the record to the history's row of its step."""
        if record["step"] >= self._first:
            self._run.log(scalars(record), step=record["step"])

    def close(self) -> None:
        """Send buffered records and finish the run."""
        self._run.finish()


@LOGGERS.register
class Wandb(LoggerConfig):
    """Weights & Biases; `mode: offline` writes to RUN/wandb and needs no account."""

    package: ClassVar[str] = "wandb"
    type: Literal["wandb"] = "wandb"
    project: str = Field("zoo", min_length=1, description="project of the runs")
    entity: str | None = Field(None, description="user or team; null: the default of the account")
    group: str | None = Field(None, description="group of the run")
    tags: tuple[str, ...] = Field((), description="tags of the run")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: only write files, for `wandb sync`"
    )

    def open(self, folder: Path, config: JsonObject, kept: Sequence[Record]) -> Logger:
        """Start or continue the run, named after the run folder."""
        return WandbLogger(self, folder, config, kept)
