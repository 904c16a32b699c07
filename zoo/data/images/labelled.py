"""Labelled images as a data set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.dataset import Batch, DataConfig, Dataset, Order, Reader
from zoo.data.shuffle import drawn, spread
from zoo.utils.errors import DataError


class Classifier(Reader, Protocol):
    """What images have to know of the model that is trained on them."""

    classes: int
    channels: int


class LabelledData(DataConfig):
    """Images with labels: what is asked is the class."""

    unit: ClassVar[str] = "images"

    @property
    def objective_name(self) -> str:
        """Classification."""
        return "classification"

    def check_classifier(self, model: Reader, classes: int, channels: int) -> None:
        """Refuse a model that is not made for these images.

        Args:
            model: the configuration of the model.
            classes: how many there are.
            channels: of an image.

        Raises:
            DataError: it is no classifier, or one of other sizes.
        """
        self.check_reader(model)
        wanted = cast(Classifier, model)
        for what, have, need in (
            ("classes", classes, wanted.classes),
            ("channels", channels, wanted.channels),
        ):
            if have != need:
                raise DataError(f"data: the images have {have} {what}, but model.{what} is {need}")


class LabelledImages(Dataset):
    """Images and labels; what becomes of an image, a subclass says.

    Attributes:
        classes: number of classes.
        labels: (n,) int64, of the training images.
        held_out: the same of those for validation, or None.
    """

    tokenizer = None
    unit = LabelledData.unit
    units = 1
    classes: int
    labels: NDArray[np.int64]
    held_out: NDArray[np.int64] | None

    @abstractmethod
    def training_images(self, indices: Sequence[int], sources: Sequence[np.random.Generator]) -> Tensor:
        """Training images, augmented with random numbers from one source each: (n, channels, h, w)."""

    @abstractmethod
    def validation_images(self, indices: Sequence[int]) -> Tensor:
        """Validation images: (n, channels, h, w)."""

    def training(self, order: Order) -> Batch:
        """This rank's part of a training batch: images (n, channels, h, w) float32, labels (n,) int64."""
        indices = drawn(order, len(self.labels))
        # By the number of an example in the run, so that an image is another one in every epoch.
        sources = [np.random.default_rng((order.seed, order.first + i)) for i in range(order.share)]
        return self.training_images(indices.tolist(), sources), torch.from_numpy(self.labels[indices])

    def validation(self, order: Order, batches: int | None) -> Iterator[Batch] | None:
        """Images spread evenly over those for validation; None if there are none."""
        if self.held_out is None:
            return None
        return self._evaluated(order, batches, self.held_out)

    def _evaluated(self, order: Order, batches: int | None, labels: NDArray[np.int64]) -> Iterator[Batch]:
        for _, indices in spread(order, len(labels), batches, f"{len(labels)} validation images"):
            yield self.validation_images(indices.tolist()), torch.from_numpy(labels[indices])
