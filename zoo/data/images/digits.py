"""Scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels that need no download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from zoo.config.registry import DATASETS
from zoo.data.dataset import ModelRequirements
from zoo.data.files import sha256
from zoo.data.images.augment import normalise
from zoo.data.images.labelled import LabelledImageData, LabelledImages
from zoo.utils.errors import DataError
from zoo.utils.extras import install

SIDE = 8
CLASSES = 10


@DATASETS.register
class DigitsData(LabelledImageData):
    """Handwritten digits, 8 x 8 pixels, that come with scikit-learn: for tests and first steps."""

    type: Literal["digits"] = "digits"
    validation: float = Field(0.2, gt=0, lt=1, description="share of the images held out: the last ones")

    @property
    def length(self) -> int:
        """Height and width of an image."""
        return SIDE

    def prepare(self, model: ModelRequirements) -> DigitsDataset:
        """Load the digits.

        Raises:
            DataError: The model is made for other images, or scikit-learn is not installed.
        """
        self.check_image_model(model, CLASSES, 1)
        return DigitsDataset(self.validation)


class DigitsDataset(LabelledImages):
    """The digits, normalised by mean and standard deviation of the training images; no augmentation."""

    classes = CLASSES

    def __init__(self, validation: float) -> None:
        """Load and split the images.

        Args:
            validation: share of the images that is held out; at least one image, and not the first one.

        Raises:
            DataError: Scikit-learn is not installed.
        """
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError(f"data: the digits come with scikit-learn: {install('digits')}") from error
        digits = load_digits()
        pixels = torch.from_numpy(digits.images).float().unsqueeze(1)
        labels = digits.target.astype(np.int64)
        # As in `Split`, each side has an example at least.
        count = min(max(round(len(labels) * (1 - validation)), 1), len(labels) - 1)
        train = pixels[:count]
        self._images = normalise(pixels, [train.mean().item()], [train.std().item()])
        self.train_labels, self.validation_labels = labels[:count], labels[count:]
        self.fingerprint = sha256(digits.images.tobytes() + labels.tobytes() + str(count).encode())

    def training_images(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> Tensor:
        """The images unchanged: (n, 1, 8, 8)."""
        return self._images[indices]

    def validation_images(self, indices: Sequence[int]) -> Tensor:
        """The images unchanged: (n, 1, 8, 8)."""
        return self._images[len(self.train_labels) :][indices]
