"""Examples that are all at hand, in a list: each is one row of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sized
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.dataset import Batch, Dataset, Order
from zoo.data.shuffle import drawn, spread
from zoo.nn.loss import IGNORED

Part = TypeVar("Part", bound=Sized)


class Listed(Dataset, Generic[Part]):
    """Listed examples, shuffled in every epoch; how some of them become a batch, a subclass says.

    Attributes:
        what: they are, in the plural, for messages.
        train: to train on.
        held_out: to evaluate on, or None.
    """

    what: ClassVar[str]
    units = 1
    train: Part
    held_out: Part | None

    @abstractmethod
    def batch(self, part: Part, indices: NDArray[np.int64]) -> Batch:
        """The examples `indices` of a part, their targets last."""

    def training(self, order: Order) -> Batch:
        """This rank's part of a training batch, as `batch` makes it."""
        return self.batch(self.train, drawn(order, len(self.train)))

    def validation(self, order: Order, batches: int | None) -> Iterator[Batch] | None:
        """Examples spread evenly over those for validation, all of them if `batches` is None.

        Where they do not divide among the ranks, the last batch is filled up with examples whose targets
        do not count.
        """
        return None if self.held_out is None else self._evaluated(self.held_out, order, batches)

    def _evaluated(self, part: Part, order: Order, batches: int | None) -> Iterator[Batch]:
        count = len(part)
        filled = -(-count // order.world) * order.world
        for _, indices in spread(order, filled, batches, f"{count} validation {self.what}"):
            *inputs, targets = self.batch(part, np.minimum(indices, count - 1))
            targets[torch.from_numpy(indices >= count)] = IGNORED
            yield *inputs, targets
