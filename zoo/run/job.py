"""A run that can be trained: its complete configuration and its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

from zoo.config.registry import type_of
from zoo.data.dataset import DataConfig
from zoo.models import ModelConfig
from zoo.optim.base import OptimizerConfig, ScheduleConfig
from zoo.run.train_config import TrainConfig
from zoo.utils.errors import ConfigError, joined_message
from zoo.utils.files import expand_home
from zoo.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from zoo.run.config import RunConfig

NEEDED = ("model", "optimizer", "data", "train")


@dataclass(frozen=True)
class Job:
    """The complete configuration of a run, and its folder.

    Attributes:
        config: the configuration.
        model, optimizer, schedule, data, train: the parts of the configuration, none of which is missing.
        folder: the run folder.
    """

    config: RunConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    data: DataConfig
    train: TrainConfig
    folder: RunFolder

    def examples_at_once(self, ranks: int) -> int:
        """The number of examples of a part of the batch on each of `ranks` processes.

        Raises:
            ConfigError: The batch cannot be divided equally, or the model cannot be trained on such parts.
        """
        examples = self.train.examples_at_once(ranks)
        self.model.check_batch(self.train.batch_size, self.train.accumulation, ranks)
        return examples

    def check_processes(self, ranks: int) -> None:
        """Refuse what `ranks` processes cannot train, as far as the configuration alone tells.

        Raises:
            ConfigError: There are several processes, and the optimizer cannot train sharded parameters or
                matrices are stored in bfloat16.
        """
        if ranks == 1:
            return
        if self.train.storage == "bf16":
            raise ConfigError(f"train.storage bf16: not with {ranks} processes; expected fp32")
        if reason := self.optimizer.not_sharded():
            raise ConfigError(
                f"optimizer.type: '{type_of(self.optimizer)}' does not train with {ranks} processes: "
                f"{reason}; expected one process or another optimizer"
            )

    @classmethod
    def of(cls, config: RunConfig, folder: RunFolder | None = None) -> Self:
        """Check that no part of a configuration is missing.

        Args:
            config: the configuration.
            folder: the run folder; None: ``<train.runs_dir>/<name>``.

        Raises:
            ConfigError: Parts of the configuration are missing; the message names them all.
        """
        if missing := [part for part in NEEDED if getattr(config, part) is None]:
            message = f"to train, the configuration needs {', '.join(missing)} as well"
            raise ConfigError(joined_message(config.place(()), message))
        train = cast(TrainConfig, config.train)
        return cls(
            config,
            cast(ModelConfig, config.model),
            cast(OptimizerConfig, config.optimizer),
            config.schedule,
            cast(DataConfig, config.data),
            train,
            folder or RunFolder(expand_home(train.runs_dir) / config.name),
        )
