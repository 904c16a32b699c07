"""Scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels, which nobody has to download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from zoo.config.registry import DATASETS
from zoo.data.dataset import Reader
from zoo.data.files import sha256
from zoo.data.images.augment import normalise
from zoo.data.images.labelled import LabelledData, LabelledImages
from zoo.utils.errors import DataError

SIDE = 8
CLASSES = 10


@DATASETS.register
class DigitsData(LabelledData):
    """Handwritten digits, 8 x 8 pixels, that come with scikit-learn: for tests and first steps."""

    type: Literal["digits"] = "digits"
    validation: float = Field(0.2, gt=0, lt=1, description="share of the images held out: the last ones")

    @property
    def length(self) -> int:
        """Height and width of an image."""
        return SIDE

    def prepare(self, model: Reader) -> Digits:
        """Load the digits.

        Raises:
            DataError: a model for something else, or no scikit-learn.
        """
        self.check_classifier(model, CLASSES, 1)
        return Digits(self.validation)


class Digits(LabelledImages):
    """The digits, normalised by mean and standard deviation of the training images; no augmentation."""

    classes = CLASSES

    def __init__(self, validation: float) -> None:
        """Load and divide them.

        Args:
            validation: share of the images held out.

        Raises:
            DataError: no scikit-learn.
        """
        found = _library().load_digits()
        pixels = torch.from_numpy(found.images).float().unsqueeze(1)
        labels = found.target.astype(np.int64)
        count = round(len(labels) * (1 - validation))
        train = pixels[:count]
        self._images = normalise(pixels, [train.mean().item()], [train.std().item()])
        self.labels, self.held_out = labels[:count], labels[count:]
        self.fingerprint = sha256(found.images.tobytes() + labels.tobytes() + str(count).encode())

    def training_images(self, indices: Sequence[int], sources: Sequence[np.random.Generator]) -> Tensor:
        """As they are: (n, 1, 8, 8)."""
        return self._images[indices]

    def validation_images(self, indices: Sequence[int]) -> Tensor:
        """As they are: (n, 1, 8, 8)."""
        return self._images[len(self.labels) :][indices]


def _library() -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError("data: the digits come with a package: pip install scikit-learn") from error
    return datasets
