"""Data sets of a fixed list of examples, each of which is one row of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sized
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.dataset import Batch, BatchSpec, Dataset
from zoo.data.shuffle import training_indices, validation_indices
from zoo.nn.loss import IGNORE_INDEX

Examples = TypeVar("Examples", bound=Sized)

PAD_MULTIPLE = 8
"""Batches are padded to multiples of this length, so that few shapes have to be compiled."""


class MapDataset(Dataset, Generic[Examples]):
    """Examples that are addressed by index, reshuffled in every epoch.

    Attributes:
        train_examples: the training examples.
        validation_examples: the validation examples, or None.
    """

    units_per_example = 1
    train_examples: Examples
    validation_examples: Examples | None

    @abstractmethod
    def collate(self, examples: Examples, indices: NDArray[np.int64]) -> Batch:
        """Batch the examples with these `indices`; the targets come last."""

    def train_batch(self, spec: BatchSpec) -> Batch:
        """This rank's part of a training batch, as `collate` returns it."""
        return self.collate(self.train_examples, training_indices(spec, len(self.train_examples)))

    def validation_batches(self, spec: BatchSpec, max_batches: int | None) -> Iterator[Batch] | None:
        """Batches of examples spread evenly over the validation set.

        If the ranks do not divide the examples, the last batch is filled up with examples whose targets are
        ignored.
        """
        examples = self.validation_examples
        return None if examples is None else self._validation_batches(examples, spec, max_batches)

    def _validation_batches(
        self, examples: Examples, spec: BatchSpec, max_batches: int | None
    ) -> Iterator[Batch]:
        count = len(examples)
        named = f"{count} validation examples"
        for _, indices, fills_up in validation_indices(spec, count, max_batches, named):
            *inputs, targets = self.collate(examples, indices)
            targets[torch.from_numpy(fills_up)] = IGNORE_INDEX
            yield *inputs, targets


def padded_length(lengths: list[int], limit: int) -> int:
    """The common length of sequences in a batch: a multiple of `PAD_MULTIPLE`, at most `limit`."""
    return min(limit, -(-max(lengths) // PAD_MULTIPLE) * PAD_MULTIPLE)
