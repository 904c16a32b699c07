"""A configuration that is complete: one that can be trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from zoo.data import DataConfig
from zoo.models import ModelConfig
from zoo.optim.base import OptimizerConfig, ScheduleConfig
from zoo.run.train_config import TrainConfig
from zoo.utils.errors import ConfigError

if TYPE_CHECKING:
    from zoo.run.config import RunConfig

NEEDED = ("model", "optimizer", "data", "train")


@dataclass(frozen=True)
class Job:
    """A run's configuration of which no part is missing.

    Attributes:
        config: the whole.
        model, optimizer, schedule, data, train: its parts.
    """

    config: RunConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    data: DataConfig
    train: TrainConfig

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Check that nothing is missing.

        Raises:
            ConfigError: parts that are; the message names them all.
        """
        if missing := [part for part in NEEDED if getattr(config, part) is None]:
            raise ConfigError(f"to train, the configuration needs {', '.join(missing)} as well")
        return cls(
            config,
            cast(ModelConfig, config.model),
            cast(OptimizerConfig, config.optimizer),
            config.schedule,
            cast(DataConfig, config.data),
            cast(TrainConfig, config.train),
        )

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.train.runs_dir / self.config.name
