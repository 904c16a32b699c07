"""Image augmentation: crop, resize, mirror, normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

ASPECT_RATIOS = (3 / 4, 4 / 3)
"""Range of the width over the height of a random crop."""

MAX_TRIES = 10


def random_resized_crop(image: Tensor, size: int, least_area: float, rng: np.random.Generator) -> Tensor:
    """Crop a random rectangle and resize it to a square (Szegedy et al. 2014, "Inception").

    Its area as a share of the image's is uniform between `least_area` and 1, its aspect ratio is uniform on
    a logarithmic scale. If no rectangle fits in ten tries, the largest central one is taken.

    Args:
        image: (channels, height, width).
        size: side of the square.
        least_area: smallest share of the image's area, above 0.
        rng: random generator.

    Returns:
        (channels, size, size) float32.
    """
    rows, columns = image.shape[1:]
    low, high = ASPECT_RATIOS
    for _ in range(MAX_TRIES):
        area = rows * columns * rng.uniform(least_area, 1)
        ratio = math.exp(rng.uniform(math.log(low), math.log(high)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            top = int(rng.integers(rows - height + 1))
            left = int(rng.integers(columns - width + 1))
            return resize(image[:, top : top + height, left : left + width], (size, size))
    width, height = min(columns, round(rows * high)), min(rows, round(columns / low))
    return resize(_central(image, height, width), (size, size))


def centre_crop(image: Tensor, size: int, share: float) -> Tensor:
    """Resize an image so that a central square is a `share` of its shorter side, and crop that square.

    Args:
        image: (channels, height, width).
        size: side of the square.
        share: above 0, at most 1.

    Returns:
        (channels, size, size) float32.
    """
    rows, columns = image.shape[1:]
    factor = round(size / share) / min(rows, columns)
    height, width = (max(size, round(side * factor)) for side in (rows, columns))
    return _central(resize(image, (height, width)), size, size)


def mirror(image: Tensor, rng: np.random.Generator) -> Tensor:
    """Flip an image, (channels, height, width), horizontally with probability 1/2."""
    return image.flip(-1) if rng.random() < 0.5 else image


def normalise(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(image - mean) / std for each channel.

    Args:
        image: (..., channels, height, width), floating point.
        mean: one number for each channel.
        std: one number above 0 for each channel.

    Returns:
        The shape of `image`, float32 for float32.
    """
    shape = (-1, 1, 1)
    return (image - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear interpolation with antialiasing: (channels, h, w) -> (channels, *size) float32."""
    pixels = image.float().unsqueeze(0)
    return F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True).squeeze(0)


def _central(image: Tensor, height: int, width: int) -> Tensor:
    """The central rectangle of the given size."""
    top, left = ((have - want) // 2 for have, want in zip(image.shape[1:], (height, width), strict=True))
    return image[:, top : top + height, left : left + width]
