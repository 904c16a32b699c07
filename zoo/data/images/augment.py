"""What is done to an image before a model sees it: cut out, resized, mirrored, normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

RATIOS = (3 / 4, 4 / 3)
"""Width over height of a random cut-out."""

TRIES = 10


def random_resized_crop(image: Tensor, size: int, least_area: float, source: np.random.Generator) -> Tensor:
    """Cut out a random rectangle and resize it to a square (Szegedy et al. 2014, "Inception").

    Its area is a uniform share of the image's, from `least_area` to 1, its ratio of sides uniform on
    a logarithmic scale. Where no rectangle fits in ten tries, it is the largest one in the middle.

    Args:
        image: (channels, height, width).
        size: side of the square.
        least_area: smallest share of the image's area, above 0.
        source: of the random numbers.

    Returns:
        (channels, size, size) float32.
    """
    rows, columns = image.shape[1:]
    low, high = RATIOS
    for _ in range(TRIES):
        area = rows * columns * source.uniform(least_area, 1)
        ratio = math.exp(source.uniform(math.log(low), math.log(high)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            top = int(source.integers(rows - height + 1))
            left = int(source.integers(columns - width + 1))
            return resize(image[:, top : top + height, left : left + width], (size, size))
    width, height = min(columns, round(rows * high)), min(rows, round(columns / low))
    return resize(_middle(image, height, width), (size, size))


def centre_crop(image: Tensor, size: int, share: float) -> Tensor:
    """Resize an image so that a square in its middle is a `share` of its shorter side, and cut that out.

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
    return _middle(resize(image, (height, width)), size, size)


def mirror(image: Tensor, source: np.random.Generator) -> Tensor:
    """Left for right, in half of the cases."""
    return image.flip(-1) if source.random() < 0.5 else image


def normalise(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(image - mean) / std, channel by channel."""
    shape = (-1, 1, 1)
    return (image - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, with antialiasing: (channels, h, w) -> (channels, *size) float32."""
    pixels = image.float().unsqueeze(0)
    return F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True).squeeze(0)


def _middle(image: Tensor, height: int, width: int) -> Tensor:
    """The rectangle of that size in the middle."""
    top, left = ((have - want) // 2 for have, want in zip(image.shape[1:], (height, width), strict=True))
    return image[:, top : top + height, left : left + width]
