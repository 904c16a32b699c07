"""The `train:` part of a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from zoo.config.registry import CLIPS, LOGGERS, Config
from zoo.optim import ClipConfig, GlobalNorm
from zoo.run.loggers import LoggerConfig

Compile = bool | Literal["blocks"]
SpikeAction = Literal["log", "skip", "rollback"]
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


class SpikeConfig(Config):
    """Loss spikes: their detection, and what is done about them."""

    action: SpikeAction = Field(
        "log",
        description="log: only log it; skip: skip the batch; rollback: go back to the last checkpoint, skip "
        "the batches since, and reduce the learning rate for a while",
    )
    threshold: float = Field(
        6.0, gt=0, description="robust standard deviations above the median of the window"
    )
    window: int = Field(100, ge=20, description="number of earlier steps that a step is compared with")
    cool_steps: int | None = Field(
        None, ge=1, description="steps at a reduced learning rate after a rollback; default 100"
    )
    cool_factor: float | None = Field(
        None, gt=0, le=1, description="factor of the learning rate after a rollback; default 0.5"
    )
    at_most: int | None = Field(
        None, ge=1, description="number of rollbacks before training fails; default 10"
    )

    @model_validator(mode="after")
    def _rollback_only(self) -> Self:
        fields = ("cool_steps", "cool_factor", "at_most")
        given = [field for field in fields if getattr(self, field) is not None]
        if given and self.action != "rollback":
            raise ValueError(f"{', '.join(given)} without effect: the action is {self.action}, not rollback")
        return self


class TrainConfig(Config):
    """Length, batch size, precision and device of the training; evaluation, logging and checkpoints."""

    steps: int = Field(ge=1, description="optimizer steps")
    batch_size: int = Field(
        ge=1, description="sequences per optimizer step, all ranks and accumulation together"
    )
    accumulation: int = Field(
        1, ge=1, description="gradient accumulation: number of parts of a batch, computed one after the other"
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="bf16: autocast; the weights and the optimizer's state stay float32"
    )
    clip_norm: float | None = Field(
        1.0, gt=0, description="largest global norm of the gradient; null: no clipping"
    )
    clip: Annotated[ClipConfig, CLIPS] = Field(
        GlobalNorm(), description="what clips the gradient besides clip_norm"
    )
    z_loss: float = Field(0.0, ge=0, description="coefficient of mean(log Z ^ 2), logged separately")
    compile: Compile = Field(
        False,
        description="torch.compile; true: the loss as a whole; blocks: block by block, equal blocks "
        "once, which takes a fraction of the time to compile",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:N, mps, or auto: the fastest available")
    eval_every: int = Field(100, ge=1, description="steps between evaluations on the validation examples")
    eval_batches: int | None = Field(
        8,
        ge=1,
        description="validation batches of batch_size examples, the same in every evaluation; null: all",
    )
    log_every: int = Field(10, ge=1, description="steps between lines in metrics.jsonl")
    monitor_every: int | None = Field(
        100,
        ge=1,
        description="steps between measurements of every matrix: update, norm, M2 / eta; null: never",
    )
    diagnose_every: int | None = Field(
        200,
        ge=1,
        description="steps between measurements of every variable: M2 / eta, and the ratio of Amos' "
        "Assumption 1 over the last 100 steps; null: never",
    )
    spikes: SpikeConfig | None = Field(SpikeConfig(), description="detection of loss spikes; null: none")
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints")
    keep_last: int = Field(2, ge=1, description="number of checkpoints kept besides the best")
    loggers: tuple[Annotated[LoggerConfig, LOGGERS], ...] = Field(
        (), description="where the records of metrics.jsonl are written as well, each logger once"
    )
    runs_dir: Path = Field(
        Path("runs"),
        description="where run folders are made; a relative path starts at the working directory",
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not DEVICE.fullmatch(value):
            raise ValueError(f"'{value}' is not a device; expected auto, cpu, mps, cuda or cuda:N")
        return value

    @field_validator("loggers")
    @classmethod
    def _each_once(cls, loggers: tuple[LoggerConfig, ...]) -> tuple[LoggerConfig, ...]:
        types = [getattr(logger, "type", "") for logger in loggers]
        if twice := sorted({name for name in types if types.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} is given more than once")
        return loggers

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by accumulation {self.accumulation}"
            )
        return self
