"""Images from files, with the usual augmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from zoo.data.dataset import Reader
from zoo.data.labelled import LabelledData
from zoo.schema import DATASETS

if TYPE_CHECKING:
    from zoo.data.image_dataset import ImageDataset


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
        from zoo.data.image_dataset import ImageDataset

        dataset = ImageDataset(self)
        self.check_classifier(model, dataset.classes, dataset.channels)
        return dataset
