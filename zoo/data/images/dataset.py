"""The data set of labelled images in files, with the usual augmentation, and its configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from zoo.config.inputs import READS_FILES
from zoo.config.registry import DATASETS
from zoo.data.dataset import ModelRequirements
from zoo.data.files import sha256
from zoo.data.images.augment import centre_crop, mirror, normalise, random_resized_crop
from zoo.data.images.files import ImageFiles, open_image_files
from zoo.data.images.labelled import LabelledImageData, LabelledImages
from zoo.utils.errors import DataError

WHITE = 255


@DATASETS.register
class ImageData(LabelledImageData):
    """Images in a folder for each class, or in .npz files: random crops, mirrored, normalised."""

    type: Literal["images"] = "images"
    train: Annotated[str, READS_FILES] = Field(
        description="a folder with a folder of images for each class, or an .npz file: images, labels"
    )
    validation: Annotated[str | None, READS_FILES] = Field(
        None, description="a folder or file of validation images; null: none"
    )
    size: int = Field(224, gt=0, description="height and width of the images that the model sees")
    least_area: float = Field(
        0.08, gt=0, le=1, description="smallest area of a random crop in training, as a share of the image"
    )
    mirror: bool = Field(True, description="mirror half of the images, in training")
    centre: float = Field(
        0.875, gt=0, le=1, description="side of the central crop over the image's shorter side, in validation"
    )
    mean: tuple[float, ...] = Field(
        (0.485, 0.456, 0.406), description="mean of every channel, where white is 1; default: ImageNet's"
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (0.229, 0.224, 0.225), description="standard deviation of every channel; default: ImageNet's"
    )
    workers: int = Field(8, ge=1, description="threads that read images")

    @property
    def measures(self) -> frozenset[str]:
        """The measures of classifiers, if there are validation images."""
        return super().measures if self.validation is not None else frozenset()

    @property
    def length(self) -> int:
        """Height and width of an image."""
        return self.size

    def prepare(self, model: ModelRequirements) -> ImageDataset:
        """List the images; they are read when they are needed.

        Raises:
            DataError: The files cannot be used, or the model cannot be trained on such images.
        """
        dataset = ImageDataset(self)
        self.check_image_model(model, dataset.classes, dataset.channels)
        return dataset


class ImageDataset(LabelledImages):
    """Images in files, augmented in training.

    All images of a batch are read in parallel threads, and each training batch in the background while the
    model is trained on the previous one.

    Attributes:
        channels: number of channels of an image.
    """

    def __init__(self, data: ImageData) -> None:
        """List the images.

        Raises:
            DataError: There are no images, the validation images have other classes or channels than the
                training images, or the numbers of means and standard deviations differ from the number of
                channels.
        """
        self.data = data
        self._train = open_image_files(data.train)
        self._validation = None if data.validation is None else open_image_files(data.validation)
        self._check()
        self.classes, self.channels = len(self._train.classes), self._train.channels
        self.train_labels = self._train.labels
        self.validation_labels = None if self._validation is None else self._validation.labels
        digests = [p.fingerprint for p in (self._train, self._validation) if p is not None]
        settings = data.model_dump_json(exclude={"train", "validation", "workers"})
        self.fingerprint = sha256("\n".join([*digests, settings]).encode())
        self._readers = ThreadPoolExecutor(data.workers)

    def training_images(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> Tensor:
        """Random crops, some mirrored: (n, channels, size, size) float32."""
        return self._stack(self._augmented, indices, rngs)

    def validation_images(self, indices: Sequence[int]) -> Tensor:
        """Central crops: (n, channels, size, size) float32."""
        files = self._validation
        if files is None:
            raise DataError("data.validation is null, so there are no validation images")
        return self._stack(lambda i: centre_crop(files.read(i), self.data.size, self.data.centre), indices)

    def _augmented(self, index: int, rng: np.random.Generator) -> Tensor:
        image = random_resized_crop(self._train.read(index), self.data.size, self.data.least_area, rng)
        return mirror(image, rng) if self.data.mirror else image

    def _stack(self, make: Callable[..., Tensor], *arguments: Sequence[object]) -> Tensor:
        """Make images in all threads; each image is a pure function of its arguments."""
        images = torch.stack(list(self._readers.map(make, *arguments)))
        return normalise(images / WHITE, self.data.mean, self.data.std)

    def _check(self) -> None:
        train = self._train
        for name, count in (("mean", len(self.data.mean)), ("std", len(self.data.std))):
            if count != train.channels:
                raise DataError(
                    f"data.{name} has {count} entries, but {train.place} has {train.channels} channels"
                )
        if self._validation is not None:
            _check_same_kind(self._validation, train)


def _check_same_kind(validation: ImageFiles, train: ImageFiles) -> None:
    """Check that the validation images have the channels and the classes of the training images."""
    if validation.channels != train.channels:
        raise DataError(
            f"{validation.place}: images of {validation.channels} channels, but those of {train.place} "
            f"have {train.channels}"
        )
    for number, (here, there) in enumerate(zip_longest(validation.classes, train.classes)):
        if here is not None and here != there:
            raise DataError(
                f"{validation.place}: class {number} is '{here}', but in {train.place} it is '{there}'"
            )
