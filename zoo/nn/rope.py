"""Rotary position embedding: a true rotation of the pairs (i, i + r/2), as in LLaMA."""

from __future__ import annotations

import torch
from torch import Tensor, library

from zoo.nn.rope_scaling import FrequencyScaling

Rope = tuple[Tensor, Tensor]
"""Cosines and sines of the angles of RoPE, float32 (..., time, r / 2) each, for r entries of a head."""


def rotation(
    where: Tensor,
    size: int,
    base: float,
    scaling: FrequencyScaling | None = None,
    length: int | Tensor | None = None,
) -> Rope:
    """The angles of RoPE, as cosines and sines.

    Args:
        where: positions, (..., time) int64.
        size: r, the number of entries of a head that are rotated, even.
        base: 10000 in the papers.
        scaling: change of the frequencies for contexts that are longer than those of the training, or None.
        length: number of positions of the sequence, by which a scaling may choose, or int64 (..., time) of
            each token's document; None: the largest position and 1.

    Returns:
        Two float32 tensors (..., time, r / 2), where `where` lives, multiplied by the scaling's magnitude.
    """
    even = torch.arange(0, size, 2, device=where.device, dtype=torch.float32)
    frequency = base ** (-even / size)
    if scaling is None:
        cos, sin = _angles(where, frequency)
        return cos, sin
    if length is None:
        length = int(where.max()) + 1 if scaling.by_length else 0
    cos, sin = _angles(where, scaling(frequency, base, length))
    return (cos, sin) if scaling.magnitude == 1 else (cos * scaling.magnitude, sin * scaling.magnitude)


@library.custom_op("zoo::angles", mutates_args=())
def _angles(where: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., r / 2) of the frequencies, (r / 2,) or (..., r / 2), at the positions (...).

    A custom operator, because inductor would otherwise recompute the cosines in every layer.
    """
    angle = where.to(frequency.dtype).unsqueeze(-1) * frequency
    return angle.cos(), angle.sin()


@_angles.register_fake
def _(where: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (frequency.new_empty(*where.shape, frequency.shape[-1]) for _ in range(2))
    return cos, sin


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate each pair (x_i, x_{i + r/2}) by the angle of its position and frequency, at least in float32.

    Args:
        x: (batch, time, heads, h); entries from r on stay as they are.
        rope: cosines and sines (time, r / 2) from `rotation`.

    Returns:
        The same shape and dtype.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (r.unsqueeze(-2).to(exact) for r in rope)
    half = cos.shape[-1]
    first, second, rest = torch.tensor_split(x.to(exact), (half, 2 * half), dim=-1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, dim=-1).to(x.dtype)
