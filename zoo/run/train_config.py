"""The `train:` part of a configuration."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from zoo.config.inputs import NOT_EMPTY
from zoo.config.registry import CLIPS, LOGGERS, Config, require_instance
from zoo.optim.clip import Clip, ClipConfig, GlobalNorm
from zoo.run.loggers import LoggerConfig
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import RUNS

SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16"}
LONG_NAMES = {short: long for long, short in SHORT_NAMES.items()}
"""Both names of the dtypes that a run can compute in."""


def _short_name(value: object) -> object:
    return SHORT_NAMES.get(value, value) if isinstance(value, str) else value


def _long_name(value: object) -> object:
    return LONG_NAMES.get(value, value) if isinstance(value, str) else value


Compile = bool | Literal["blocks"]
DtypeName = Literal["fp32", "bf16", "float32", "bfloat16"]
Precision = Annotated[Literal["fp32", "bf16"], BeforeValidator(_short_name, json_schema_input_type=DtypeName)]
"""float32 and bfloat16 are accepted as well."""
Floating = Annotated[
    Literal["float32", "bfloat16"], BeforeValidator(_long_name, json_schema_input_type=DtypeName)
]
"""fp32 and bf16 are accepted as well."""
Recompute = Literal["none", "blocks", "selective"]
SpikeAction = Literal["log", "skip", "rollback"]
TAKEN_SIGNALS = frozenset(
    {
        *("SIGKILL", "SIGSTOP", "SIGINT", "SIGTERM"),
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGCHLD"),
    }
)
"""Signals that no scheduler sends: the system's, those of faults, and those that have a meaning already."""
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")

COOL_STEPS, COOL_FACTOR, AT_MOST = 100, 0.5, 10
"""The values of the fields of `SpikeConfig` that only rollbacks use, where they are not given."""


class SpikeConfig(Config):
    """Loss spikes: their detection, and the action on them."""

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
        None, ge=1, description=f"steps at a reduced learning rate after a rollback; default {COOL_STEPS}"
    )
    cool_factor: float | None = Field(
        None, gt=0, le=1, description=f"factor of the learning rate after a rollback; default {COOL_FACTOR}"
    )
    at_most: int | None = Field(
        None, ge=1, description=f"number of rollbacks before training fails; default {AT_MOST}"
    )

    @model_validator(mode="after")
    def _rollback_only(self) -> Self:
        fields = ("cool_steps", "cool_factor", "at_most")
        given = [field for field in fields if getattr(self, field) is not None]
        if given and self.action != "rollback":
            raise ValueError(f"{', '.join(given)} without effect: the action is {self.action}, not rollback")
        return self


class ParallelConfig(Config):
    """Several processes: which of them share a copy of the model, and the data that they exchange."""

    shard: int | None = Field(
        None, ge=1, description="processes that share a copy of weights and optimizer state; null: all"
    )
    replicate: int = Field(
        1, ge=1, description="number of copies; shard times replicate is the number of processes"
    )
    reshard_after_forward: bool = Field(
        True, description="free a block's gathered weights until the backward pass gathers them again"
    )
    gather: Floating = Field(
        "float32",
        description="dtype in which the weights of blocks are gathered, including norms and gates; "
        "stored and updated weights are float32",
    )
    reduce: Floating = Field("float32", description="dtype in which gradients are summed over processes")
    sync: Literal["auto", "every", "last"] = Field(
        "auto",
        description="when gradients are summed over processes with accumulation: after every part, or after "
        "the last with whole gradients until then; auto: the last if these take at most a tenth of the "
        "memory",
    )
    timeout: int = Field(
        600, ge=1, description="seconds after which a process that waits for the others gives up"
    )

    def copies(self, ranks: int) -> int:
        """The number of copies of the model among `ranks` processes.

        Raises:
            ConfigError: The number of processes is not shard times replicate.
        """
        share = self.shard or max(1, ranks // self.replicate)
        if share * self.replicate != ranks:
            raise ConfigError(
                f"train.parallel: shard {self.shard or share} x replicate {self.replicate} does not make "
                f"{ranks} processes"
            )
        return self.replicate

    def defers(self, numbers: int, memory: int | None) -> bool:
        """Whether an accumulated batch keeps unsharded gradients and sums them over processes once.

        Args:
            numbers: number of entries of all gradients, which are float32.
            memory: bytes of memory that a process can use; None: it is unknown, and `auto` sums after every
                part.
        """
        if self.sync != "auto":
            return self.sync == "last"
        return memory is not None and 4 * numbers <= memory / 10


class TrainConfig(Config):
    """Length, batch size, precision and device of the training; evaluation, logging and checkpoints."""

    steps: int = Field(ge=1, description="optimizer steps")
    batch_size: int = Field(
        ge=1, description="sequences per optimizer step, all ranks and accumulation together"
    )
    accumulation: int = Field(
        1, ge=1, description="gradient accumulation: number of parts of a batch, computed one after the other"
    )
    precision: Precision = Field(
        "fp32", description="bf16: autocast; the weights and the optimizer's state stay float32"
    )
    storage: Precision = Field(
        "fp32",
        description="bf16: matrices are stored in bfloat16 and rounded stochastically after each step, which "
        "is computed in float32; norms, gates and the optimizer's state stay float32",
    )
    clip_norm: float | None = Field(
        1.0, gt=0, description="largest global norm of the gradient; null: no clipping"
    )
    clip: Annotated[ClipConfig, CLIPS] = Field(GlobalNorm(), description="kind of clipping of the gradient")
    z_loss: float = Field(0.0, ge=0, description="coefficient of mean(log Z ^ 2), logged separately")
    recompute: Recompute = Field(
        "none",
        description="activations that the backward pass computes again: none; blocks: those within blocks; "
        "selective: of these not the outputs of matrix products and attention",
    )
    parallel: ParallelConfig = Field(ParallelConfig(), description="several processes")
    stop_signal: str | None = Field(
        None,
        description="a signal besides SIGTERM at which the run saves and stops, e.g. SIGUSR1; null: none",
    )
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
        (), description="loggers that also receive the records of metrics.jsonl, each at most once"
    )
    runs_dir: Annotated[Path, NOT_EMPTY] = Field(
        Path(RUNS),
        description="where run folders are made; a relative path starts at the working directory, and ~ is "
        "the home folder",
    )

    def examples_at_once(self, ranks: int) -> int:
        """The number of examples of a part of the batch on each of `ranks` processes.

        Raises:
            ConfigError: The batch cannot be divided equally.
        """
        if self.batch_size % (ranks * self.accumulation):
            raise ConfigError(
                f"train.batch_size {self.batch_size} does not divide among {ranks} processes "
                f"with train.accumulation {self.accumulation}"
            )
        return self.batch_size // (ranks * self.accumulation)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not DEVICE.fullmatch(value):
            raise ValueError(f"'{value}' is not a device; expected auto, cpu, mps, cuda or cuda:N")
        return value

    @field_validator("stop_signal")
    @classmethod
    def _known_signal(cls, value: str | None) -> str | None:
        free = {s.name for s in signal.Signals} - TAKEN_SIGNALS
        if value is not None and value not in free:
            raise ValueError(f"'{value}' is not a signal that can be waited for; expected e.g. SIGUSR1")
        return value

    @field_validator("loggers")
    @classmethod
    def _each_once(cls, loggers: tuple[LoggerConfig, ...]) -> tuple[LoggerConfig, ...]:
        types = [getattr(logger, "type", "") for logger in loggers]
        if twice := sorted({name for name in types if types.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} is given more than once")
        return loggers

    @model_validator(mode="after")
    def _storage_is_computed_with(self) -> Self:
        if self.storage == "bf16" and self.precision == "fp32":
            raise ValueError("storage: bf16 needs precision: bf16")
        return self

    @model_validator(mode="after")
    def _parallel_has_effect(self) -> Self:
        if self.parallel.gather == "bfloat16" and self.precision == "fp32":
            raise ValueError("parallel.gather: bfloat16 needs precision: bf16")
        if self.parallel.sync != "auto" and self.accumulation == 1:
            raise ValueError(f"parallel.sync: {self.parallel.sync} has no effect with accumulation: 1")
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by accumulation {self.accumulation}"
            )
        return self

    def build_clip(self) -> Clip:
        """The clipping of the run, which has still to be prepared for its model.

        Raises:
            ConfigError: A setting of the clipping has no effect, or its class builds something else.
        """
        return require_instance(type(self.clip), "build", self.clip.build(self.clip_norm), Clip)
