"""Images from files, with the usual augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from zoo.config.registry import DATASETS
from zoo.data.dataset import Batch, Order, Reader
from zoo.data.files import sha256
from zoo.data.images.augment import centre_crop, mirror, normalise, random_resized_crop
from zoo.data.images.files import open_pictures
from zoo.data.images.labelled import LabelledData, LabelledImages
from zoo.utils.errors import DataError

WHITE = 255


@DATASETS.register
class ImageData(LabelledData):
    """Images in a folder for each class, or in .npz files: random cut-outs, mirrored, normalised."""

    type: Literal["images"] = "images"
    train: str = Field(
        description="a folder with a folder of images for each class, or an .npz file: images, labels"
    )
    validation: str | None = Field(None, description="the same, for validation; null: none")
    size: int = Field(224, gt=0, description="height and width of what the model sees")
    least_area: float = Field(
        0.08, gt=0, le=1, description="smallest share of an image that a random cut-out is, in training"
    )
    mirror: bool = Field(True, description="mirror half of the images, in training")
    centre: float = Field(
        0.875, gt=0, le=1, description="side of the cut-out over the image's shorter side, in validation"
    )
    mean: tuple[float, ...] = Field(
        (0.485, 0.456, 0.406), description="mean of every channel, white being 1; default: ImageNet's"
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (0.229, 0.224, 0.225), description="standard deviation of every channel; default: ImageNet's"
    )
    workers: int = Field(8, ge=1, description="threads that read images")

    @property
    def length(self) -> int:
        """Height and width of an image."""
        return self.size

    def prepare(self, model: Reader) -> ImageDataset:
        """Find the images.

        Raises:
            DataError: files that cannot be used, or not by this model.
        """
        dataset = ImageDataset(self)
        self.check_classifier(model, dataset.classes, dataset.channels)
        return dataset


class ImageDataset(LabelledImages):
    """Pictures, augmented in training.

    Attributes:
        channels: of an image.
    """

    def __init__(self, data: ImageData) -> None:
        """Find the pictures.

        Raises:
            DataError: there are none, validation has other classes or channels than training, or they do
                not have as many channels as there are means and standard deviations.
        """
        self.data = data
        self._train = open_pictures(data.train)
        self._validation = None if data.validation is None else open_pictures(data.validation)
        self._check()
        self.classes, self.channels = len(self._train.classes), self._train.channels
        self.labels = self._train.labels
        self.held_out = None if self._validation is None else self._validation.labels
        prints = [p.fingerprint for p in (self._train, self._validation) if p is not None]
        settings = data.model_dump_json(exclude={"train", "validation", "workers"})
        self.fingerprint = sha256("\n".join([*prints, settings]).encode())
        self._pool = ThreadPoolExecutor(data.workers)
        self._ahead = ThreadPoolExecutor(1)
        self._coming: dict[Order, Future[Batch]] = {}

    def training(self, order: Order) -> Batch:
        """This rank's part of a training batch; the next one is read while this one is trained on."""
        read = super().training
        following = replace(order, step=order.step + 1)
        wanted = self._coming.pop(order, None) or self._ahead.submit(read, order)
        self._coming = {following: self._ahead.submit(read, following)}
        return wanted.result()

    def training_images(self, indices: Sequence[int], sources: Sequence[np.random.Generator]) -> Tensor:
        """Random cut-outs, some mirrored: (n, channels, size, size)."""
        return self._stack(self._augmented, indices, sources)

    def validation_images(self, indices: Sequence[int]) -> Tensor:
        """What is in the middle: (n, channels, size, size)."""
        return self._stack(self._centred, indices)

    def _augmented(self, index: int, source: np.random.Generator) -> Tensor:
        image = random_resized_crop(self._train.read(index), self.data.size, self.data.least_area, source)
        return mirror(image, source) if self.data.mirror else image

    def _centred(self, index: int) -> Tensor:
        assert self._validation is not None
        return centre_crop(self._validation.read(index), self.data.size, self.data.centre)

    def _stack(self, make: Callable[..., Tensor], *arguments: Sequence[object]) -> Tensor:
        """Make images in all threads; each is a pure function of its arguments."""
        images = torch.stack(list(self._pool.map(make, *arguments)))
        return normalise(images / WHITE, self.data.mean, self.data.std)

    def _check(self) -> None:
        train, validation = self._train, self._validation
        for what, count in (("mean", len(self.data.mean)), ("std", len(self.data.std))):
            if count != train.channels:
                raise DataError(
                    f"data.{what} has {count} entries, but {train.place} has {train.channels} channels"
                )
        if validation is None:
            return
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
