"""Loggers, which send the records of metrics.jsonl to the dashboards that `train.loggers` names."""

from zoo.run.loggers.base import Logger, LoggerConfig, scalars
from zoo.run.loggers.tensorboard import TensorBoard
from zoo.run.loggers.wandb import Wandb
from zoo.utils.run_folder import Record

__all__ = ["Logger", "LoggerConfig", "Record", "TensorBoard", "Wandb", "scalars"]
