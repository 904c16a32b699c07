"""What a data set is to training: batches as a pure function of an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from zoo.config.registry import Config
from zoo.data.prompting import Prompting
from zoo.data.tokenizers.base import FOLDER, Tokenizer
from zoo.utils.atomic import write_folder
from zoo.utils.errors import DataError

Batch = tuple[Tensor, ...]
"""The inputs of a model and then the targets; the first dimension of each counts the examples."""

Measure = Literal["cross_entropy", "accuracy", "f1", "matthews"]
"""What an evaluation measures: the lower the better for the cross entropy, the higher for the rest."""


@dataclass(frozen=True)
class Order:
    """Which batch is wanted; the batches of the ranks, joined in their order, are that of a single one.

    Attributes:
        seed: of the order of the examples and of everything random in them.
        step: of the optimizer, from 0.
        batch_size: examples of all ranks together.
        rank: this process, from 0.
        world: number of processes; divides `batch_size`.

    Raises:
        DataError: a batch that does not divide among the ranks.
    """

    seed: int
    step: int
    batch_size: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world:
            raise DataError(
                f"a batch of {self.batch_size} examples does not divide among {self.world} processes"
            )

    @property
    def share(self) -> int:
        """Examples of this rank."""
        return self.batch_size // self.world

    @property
    def first(self) -> int:
        """Number of this rank's first example, counted from the start of training."""
        return self.step * self.batch_size + self.rank * self.share


class Reader(Protocol):
    """What data has to know of the model that is trained on it."""

    @property
    def objectives(self) -> frozenset[str]:
        """What it can be trained by."""
        ...


class Dataset(ABC):
    """Training and validation examples.

    Attributes:
        fingerprint: changes whenever an example does.
        tokenizer: what made the tokens; None where there are none.
        unit: what is counted, in the plural: tokens, images.
        units: how many of them an example is.
        classes: number of classes, where each example has one label; None where it has not.
        best: the measure by which the best checkpoint is chosen.
    """

    fingerprint: str
    tokenizer: Tokenizer | None
    unit: str
    units: int
    classes: int | None = None
    best: Measure = "cross_entropy"

    @abstractmethod
    def training(self, order: Order) -> Batch:
        """This rank's part of a training batch, on the CPU."""

    @abstractmethod
    def validation(self, order: Order, batches: int | None) -> Iterator[Batch] | None:
        """The examples to evaluate on: the same ones at every call, in every run.

        The last batch may be smaller. Every rank gets equally many examples of each, so weigh a batch
        by its number of targets.

        Args:
            order: its step is of no account.
            batches: at most so many; None: all there are.

        Returns:
            This rank's parts; None where nothing is held out.
        """

    def save(self, run: Path) -> None:
        """Leave in the folder of a run what its model cannot be used without: the tokenizer."""
        if self.tokenizer is not None:
            write_folder(run / FOLDER, self.tokenizer.save)


class DataConfig(Config):
    """Where examples come from: the `data:` part of a configuration.

    Attributes:
        unit: see `Dataset`.
    """

    unit: ClassVar[str]

    @property
    def length(self) -> int:
        """Length of an example: tokens of a sequence, height and width of an image."""
        raise NotImplementedError

    @property
    def objective_name(self) -> str:
        """What the examples ask of a model: one of its `objectives`."""
        raise NotImplementedError

    @property
    def prompting(self) -> Prompting | None:
        """How a model that was trained on this is given text; None: it is not."""
        return None

    def prepare(self, model: Reader) -> Dataset:
        """Make the examples ready.

        Args:
            model: the configuration of the model that will read them.

        Raises:
            DataError: data that cannot be used, or not by this model.
        """
        raise NotImplementedError

    def check_reader(self, model: Reader) -> None:
        """Refuse a model that is not trained on such examples, or that they are too long for.

        Raises:
            DataError: it is, or they are.
        """
        if self.objective_name not in model.objectives:
            raise DataError(
                f"data: the objective is '{self.objective_name}', but model '{getattr(model, 'type', '')}' "
                f"is trained by {' or '.join(sorted(model.objectives))}"
            )
        max_seq_len = getattr(model, "max_seq_len", None)
        if max_seq_len is not None and self.length > max_seq_len:
            raise DataError(
                f"data.context is {self.length}, but the model has vectors for {max_seq_len} positions"
            )
