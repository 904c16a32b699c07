"""Labelled images in files: a folder for each class, or arrays in one .npz file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.files import sha256, sha256_file
from zoo.utils.errors import DataError
from zoo.utils.files import expand_home, open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})
ARRAYS = ".npz"
WITH_16_BITS = frozenset({"PNG", "PPM"})
"""Formats of which Pillow opens grey images of 16 bits in the mode of 32 bits, PNG in older versions."""


class ImageFiles(ABC):
    """Images with their labels, read from files.

    Attributes:
        place: path of the images, for messages.
        labels: (n,) int64, class indices.
        classes: names of the classes, in the order of their indices.
        channels: number of channels of an image.
        fingerprint: digest that changes whenever an image changes.
    """

    place: str
    labels: NDArray[np.int64]
    classes: Sequence[str]
    channels: int
    fingerprint: str

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """Read one image: (channels, height, width) uint8."""

    def __len__(self) -> int:
        return len(self.labels)


def open_image_files(written: str) -> ImageFiles:
    """Open a folder or file of labelled images.

    Args:
        written: a folder with a folder of image files for each class, or an .npz file of arrays
            `images`, (n, h, w) or (n, h, w, channels) uint8, and `labels`, (n,) integers from 0.

    Raises:
        DataError: The path is neither a folder nor an .npz file, or has no image.
    """
    path = expand_home(written)
    if path.is_dir():
        return ImageFolder(path)
    if path.is_file() and path.suffix == ARRAYS:
        return ArrayFile(path)
    raise DataError(f"{written}: expected a folder with a folder for each class, or an {ARRAYS} file")


class ImageFolder(ImageFiles):
    """A folder with a folder of image files for each class; the classes are sorted by name.

    The fingerprint covers the names and sizes of the files, not their contents: reading all of ImageNet
    would take an hour.

    Raises:
        DataError: There is no class, or a class has no image.
    """

    channels = 3

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
        self.classes = [folder.name for folder in folders]
        files_by_class = [
            sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES) for folder in folders
        ]
        empty = [str(folder) for folder, files in zip(folders, files_by_class, strict=True) if not files]
        if empty or not folders:
            raise DataError(f"{empty[0] if empty else path}: no image; expected a folder for each class")
        self._files = [file for files in files_by_class for file in files]
        self.labels = np.repeat(np.arange(len(folders)), [len(files) for files in files_by_class])
        try:
            listing = "\n".join(f"{f.relative_to(path).as_posix()} {f.stat().st_size}" for f in self._files)
        except OSError as error:  # a link to nothing, or to itself
            raise DataError(f"{error.filename}: {error.strerror}") from error
        self.fingerprint = sha256(listing.encode())

    def read(self, index: int) -> Tensor:
        """Read one image as RGB: (3, height, width) uint8."""
        from PIL import Image

        file = self._files[index]
        with open_regular(file, DataError) as stream:
            try:
                with Image.open(stream) as image:
                    pixels = np.array(_rgb(image, file))
            except DataError:
                raise
            except Exception as error:  # Pillow's formats raise different errors for damaged files
                what = f"{type(error).__name__}: {error}"
                raise DataError(f"{file}: not an image that can be read ({what})") from error
        return torch.from_numpy(pixels).permute(2, 0, 1)


def _rgb(image: Image, file: Path) -> Image:
    """Turn an image of any mode into one of 8 bits for each of red, green and blue.

    Raises:
        DataError: The range of the values is not known.
    """
    from PIL.Image import fromarray

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in WITH_16_BITS):
        # Pillow would cut off all values above 255.
        return fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise DataError(
            f"{file}: an image of mode {image.mode}, whose range is unknown; "
            "expected 8 or 16 bits per channel"
        )
    return image.convert("RGB")


class ArrayFile(ImageFiles):
    """An .npz file of arrays.

    Raises:
        DataError: The arrays are not those that `open_image_files` describes.
    """

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self.fingerprint = sha256_file(path)
        expected = "expected arrays `images` (n, h, w[, channels]) uint8 and `labels` (n,), integers from 0"
        with open_regular(path, DataError) as stream:
            try:
                with np.load(stream, allow_pickle=False) as arrays:
                    images, labels = arrays["images"], arrays["labels"]
            except Exception as error:  # NumPy and zipfile raise many kinds of errors for damaged files
                what = f"{type(error).__name__}: {error}"
                raise DataError(f"{path}: {expected}, got an error: {what}") from error
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or not np.issubdtype(labels.dtype, np.integer)
            or labels.shape != images.shape[:1]
            or not len(labels)
            or labels.min() < 0
        ):
            got = f"{images.dtype} {images.shape} and {labels.dtype} {labels.shape}"
            raise DataError(f"{path}: {expected}, got {got}")
        self._images = images[..., None] if images.ndim == 3 else images
        self.labels = labels.astype(np.int64)
        self.classes = [str(number) for number in range(int(labels.max()) + 1)]
        self.channels = self._images.shape[-1]

    def read(self, index: int) -> Tensor:
        """Read one image with its own channels: (channels, height, width) uint8."""
        return torch.from_numpy(self._images[index]).permute(2, 0, 1)
