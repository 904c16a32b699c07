"""The interface between a data set and training: each batch is a pure function of a `BatchSpec`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from zoo.config.registry import Config
from zoo.data.prompting import Prompting
from zoo.data.tokenizers.base import Tokenizer
from zoo.utils.atomic import write_folder
from zoo.utils.errors import DataError
from zoo.utils.measures import MEASURES, OF_CLASSIFIERS, OF_TEXTS
from zoo.utils.run_folder import ModelFolder

Batch = tuple[Tensor, ...]
"""The inputs of a model, then the targets; the first dimension of each tensor is the batch dimension."""


@dataclass(frozen=True)
class BatchSpec:
    """The specification of a batch; the batches of all ranks, concatenated, are that of a single process.

    Attributes:
        seed: seed of the shuffling and of all other randomness in the examples.
        step: optimizer step, from 0.
        batch_size: number of examples over all ranks.
        rank: number of this process, from 0.
        world_size: number of processes; divides `batch_size`.

    Raises:
        DataError: The batch size is not divisible by the number of processes.
    """

    seed: int
    step: int
    batch_size: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size:
            raise DataError(
                f"a batch of {self.batch_size} examples does not divide among {self.world_size} processes"
            )

    @property
    def rank_batch_size(self) -> int:
        """Number of examples of this rank."""
        return self.batch_size // self.world_size

    @property
    def first_example(self) -> int:
        """Index of this rank's first example, counted from the start of training."""
        return self.step * self.batch_size + self.rank * self.rank_batch_size


class ModelRequirements(Protocol):
    """The fields of a model's configuration with which a data set must agree."""

    @property
    def objectives(self) -> frozenset[str]:
        """Names of the objectives that the model can be trained with."""
        ...


class Dataset(ABC):
    """The training and validation examples of a run, and what is known of them.

    Attributes:
        fingerprint: digest that changes whenever an example changes, but not when files are moved.
        former_fingerprints: the digests that earlier versions wrote for the same examples.
        tokenizer: the tokenizer of the examples; None for images.
        unit: plural noun for the unit that is counted: tokens, images.
        units_per_example: number of units in one example.
        train_units: number of units in the training data; None: it is not known.
        classes: number of classes if every example has one label, otherwise None.
        bytes_per_target: UTF-8 bytes of validation text per validation target; None if the targets are no
            text, not the whole text, or the text is not known.
        best_metric: the measure that selects the best checkpoint, unless the run names another.
        summary: a sentence on the examples that training prints at its start; "": nothing.
    """

    fingerprint: str
    former_fingerprints: tuple[str, ...] = ()
    tokenizer: Tokenizer | None
    unit: str
    units_per_example: int
    train_units: int | None = None
    classes: int | None = None
    bytes_per_target: float | None = None
    best_metric: str = "cross_entropy"
    summary: str = ""

    @property
    def measures(self) -> frozenset[str]:
        """The measures of a validation, by the names in `zoo.utils.measures`."""
        if self.classes is not None:
            return OF_CLASSIFIERS
        return OF_TEXTS if self.bytes_per_target is not None else OF_TEXTS - {"bits_per_byte"}

    @property
    def overlap(self) -> float | None:
        """The share of the validation text that occurs in the training text; None: it was not measured."""
        return None

    def measure_overlap(self) -> float | None:
        """`overlap`, measured now and kept beside the prepared data, where that is possible."""
        return self.overlap

    @abstractmethod
    def train_batch(self, spec: BatchSpec) -> Batch:
        """This rank's part of a training batch, on the CPU."""

    @abstractmethod
    def validation_batches(self, spec: BatchSpec, max_batches: int | None) -> Iterator[Batch] | None:
        """This rank's parts of the validation batches: the same ones at every call and in every run.

        The last batch may be smaller. Every rank gets the same number of examples of each batch, so a mean
        over batches must weight each batch by its number of targets.

        Args:
            spec: batch size and ranks; the step has no effect.
            max_batches: upper limit of the number of batches; None: the whole validation set.

        Returns:
            The batches, or None if the data set has no validation examples.
        """

    def validation_sets(self, spec: BatchSpec, max_batches: int | None) -> dict[str, Iterator[Batch]]:
        """The validation batches by the name of their file: several files have names, a single one has ""."""
        batches = self.validation_batches(spec, max_batches)
        return {} if batches is None else {"": batches}

    def save(self, folder: Path) -> None:
        """Write the files that a trained model needs at inference (the tokenizer) into the run's folder."""
        if self.tokenizer is not None:
            write_folder(ModelFolder(folder).tokenizer, self.tokenizer.save)


TOKENS = "tokens"
"""The unit of which an example has as many as its length; an example is one of any other unit."""


class Units(NamedTuple):
    """The number of the units that an example counts as.

    Attributes:
        number: the number.
        noun: plural noun for the unit: tokens, images.
    """

    number: int
    noun: str


class DataConfig(Config):
    """The `data:` part of a configuration, which describes the source of examples.

    Attributes:
        unit: plural noun for the unit that is counted: tokens, images.
    """

    unit: ClassVar[str]

    @property
    @abstractmethod
    def length(self) -> int:
        """Length of an example: tokens of a sequence, or height and width of an image."""
        raise NotImplementedError

    @property
    def units(self) -> Units:
        """The number of units that an example counts as: its length if they are tokens, and otherwise 1."""
        return Units(self.length if self.unit == TOKENS else 1, self.unit)

    def example(self) -> Batch | None:
        """A training example of arbitrary content.

        Returns:
            A batch of one, on the CPU, with the shapes and the number of targets of every example; None:
            the example of the model (`zoo.models.Model.example`) of this length has them.

        Raises:
            DataError: No example of this length can be made.
        """
        return None

    @property
    def separates_documents(self) -> bool:
        """Whether a row may have several documents that do not see each other.

        A batch is then (tokens, documents, targets): the second tensor, int64 of the shape of the tokens,
        has the number of each token's document, and the model's `reads_documents` must be set.
        """
        return False

    @property
    @abstractmethod
    def objective_name(self) -> str:
        """Name of the training objective; the model's `objectives` must contain it."""
        raise NotImplementedError

    @property
    def measures(self) -> frozenset[str]:
        """The measures that a validation may have, by the names in `zoo.utils.measures`.

        It is empty without validation examples, and includes ``FILE/NAME`` for several validation files.
        """
        return frozenset(MEASURES)

    @property
    def prompting(self) -> Prompting | None:
        """The prompting of a model trained on this data; None if it generates no text."""
        return None

    @abstractmethod
    def prepare(self, model: ModelRequirements) -> Dataset:
        """Build the data set, tokenised and cached where that applies.

        Args:
            model: the configuration of the model that will be trained on the data set.

        Raises:
            DataError: The files cannot be used, or the model cannot be trained on such examples.
        """
        raise NotImplementedError

    def check_model(self, model: ModelRequirements) -> None:
        """Check that a model can be trained on these examples.

        Raises:
            DataError: The model does not have this objective, has fewer positions than an example has
                tokens, or does not separate the documents of a row.
        """
        if self.objective_name not in model.objectives:
            raise DataError(
                f"data: the objective is '{self.objective_name}', but model '{getattr(model, 'type', '')}' "
                f"is trained by {' or '.join(sorted(model.objectives))}"
            )
        if self.separates_documents and not getattr(model, "reads_documents", False):
            raise DataError(
                f"data: several documents in a row need a model that tells them apart, which "
                f"model '{getattr(model, 'type', '')}' does not: leave data.packing and data.documents out"
            )
        max_seq_len = getattr(model, "max_seq_len", None)
        if max_seq_len is not None and self.length > max_seq_len:
            raise DataError(
                f"data.context is {self.length}, but the model has vectors for {max_seq_len} positions"
            )
