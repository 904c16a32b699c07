"""The interface of data sets of labelled images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.dataset import Batch, BatchSpec, DataConfig, Dataset, ModelRequirements
from zoo.data.shuffle import training_indices, validation_indices
from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import DataError
from zoo.utils.measures import OF_CLASSIFIERS


class ImageModelRequirements(ModelRequirements, Protocol):
    """The fields of an image classifier's configuration with which a data set must agree."""

    classes: int
    channels: int


class LabelledImageData(DataConfig):
    """The configuration of images with one label each."""

    unit: ClassVar[str] = "images"

    @property
    def measures(self) -> frozenset[str]:
        """The measures of classifiers."""
        return OF_CLASSIFIERS

    @property
    def objective_name(self) -> str:
        """The name of the objective: classification of images."""
        return "classification"

    def check_image_model(self, model: ModelRequirements, classes: int, channels: int) -> None:
        """Check that a model can be trained on these images.

        Args:
            model: the configuration of the model.
            classes: number of classes of the data set.
            channels: number of channels of an image.

        Raises:
            DataError: The model is not an image classifier, or has other numbers of classes or channels.
        """
        self.check_model(model)
        classifier = cast(ImageModelRequirements, model)
        for name, have, need in (
            ("classes", classes, classifier.classes),
            ("channels", channels, classifier.channels),
        ):
            if have != need:
                raise DataError(f"data: the images have {have} {name}, but model.{name} is {need}")


class LabelledImages(Dataset):
    """Images and labels; a subclass reads and augments the images.

    Attributes:
        classes: number of classes.
        train_labels: (n,) int64, class indices of the training images.
        validation_labels: the same for the validation images, or None.
    """

    tokenizer = None
    unit = LabelledImageData.unit
    units_per_example = 1
    classes: int
    train_labels: NDArray[np.int64]
    validation_labels: NDArray[np.int64] | None

    @abstractmethod
    def training_images(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> Tensor:
        """Training images, each augmented with its own random generator: (n, channels, h, w) float32."""

    @abstractmethod
    def validation_images(self, indices: Sequence[int]) -> Tensor:
        """Validation images: (n, channels, h, w) float32."""

    def train_batch(self, spec: BatchSpec) -> Batch:
        """This rank's part of a training batch: images (n, channels, h, w) float32, labels (n,) int64."""
        indices = training_indices(spec, len(self.train_labels))
        # Seeded by the number of the example in the run, so that an image's crops differ between epochs.
        numbers = range(spec.first_example, spec.first_example + spec.rank_batch_size)
        rngs = [np.random.default_rng((spec.seed, number)) for number in numbers]
        return self.training_images(indices.tolist(), rngs), torch.from_numpy(self.train_labels[indices])

    def validation_batches(self, spec: BatchSpec, max_batches: int | None) -> Iterator[Batch] | None:
        """Batches of images spread evenly over the validation set; None if there is none.

        If the ranks do not divide the images, the last batch is filled up with images whose labels are
        ignored.
        """
        labels = self.validation_labels
        return None if labels is None else self._validation_batches(spec, max_batches, labels)

    def _validation_batches(
        self, spec: BatchSpec, max_batches: int | None, labels: NDArray[np.int64]
    ) -> Iterator[Batch]:
        count = len(labels)
        named = f"{count} validation images"
        for _, indices, fills_up in validation_indices(spec, count, max_batches, named):
            targets = np.where(fills_up, IGNORE_INDEX, labels[indices])
            yield self.validation_images(indices.tolist()), torch.from_numpy(targets)
