"""Rotary position embedding: a true rotation of the pairs (i, i + r/2), as in LLaMA."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.kernels.operator import operator
from zoo.kernels.rotation import rotate_pairs
from zoo.nn.rope_scaling import FrequencyScaling

Rope = tuple[Tensor, Tensor]
"""The angles of RoPE for r entries of a head, float32: their cosines (..., time, r / 2) and signed sines
(..., time, 2, r / 2): minus the sines for the first entries of the pairs, the sines for the second."""


def rotation(
    position_ids: Tensor,
    size: int,
    base: float,
    scaling: FrequencyScaling | None = None,
    length: int | Tensor | None = None,
) -> Rope:
    """The angles of RoPE, as cosines and signed sines.

    Args:
        position_ids: positions, (..., time) int64.
        size: r, the number of entries of a head that are rotated, even.
        base: 10000 in the papers.
        scaling: change of the frequencies for contexts that are longer than those of the training, or None.
        length: number of positions of the sequence, by which a scaling may choose the frequencies, or int64
            (..., time) of each token's document, or (..., 1) of each row; None: the largest position plus 1.

    Returns:
        Two float32 tensors, (..., time, r / 2) and (..., time, 2, r / 2), on the device of `position_ids`,
        multiplied by the scaling's magnitude; ... is that of `position_ids` and `length`, broadcast.
    """
    even = torch.arange(0, size, 2, device=position_ids.device, dtype=torch.float32)
    frequency = base ** (-even / size)
    if scaling is None:
        cos, sin = _angles(position_ids, frequency)
        return cos, sin
    if length is None:
        length = int(position_ids.max()) + 1 if scaling.by_length else 0
    cos, sin = _angles(position_ids, scaling(frequency, base, length))
    return (cos, sin) if scaling.magnitude == 1 else (cos * scaling.magnitude, sin * scaling.magnitude)


def _empty_angles(position_ids: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    shapes = (*position_ids.shape, 1), frequency.shape
    *shape, half = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # torch annotates nothing
    return frequency.new_empty(*shape, half), frequency.new_empty(*shape, 2, half)


@operator("angles", _empty_angles)
def _angles(position_ids: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the frequencies, (r / 2,) or (..., r / 2), at the positions (...).

    An operator, because inductor would otherwise recompute the cosines in every layer.
    """
    angle = position_ids.to(frequency.dtype).unsqueeze(-1) * frequency
    sin = angle.sin()
    return angle.cos(), torch.stack((-sin, sin), dim=-2)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate each pair (x_i, x_{i + r/2}) by the angle of its position and frequency, at least in float32.

    Args:
        x: (batch, time, heads, h); entries from r on stay as they are.
        rope: cosines and signed sines from `rotation`.

    Returns:
        The same shape and dtype.
    """
    cos, sin = rope
    size = 2 * cos.shape[-1]
    turned = rotate_pairs(x[..., :size], cos, sin)
    return turned if x.shape[-1] == size else torch.cat((turned, x[..., size:]), dim=-1)


def rotate_both(q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, (batch, time, heads, h) each, as `rotate` does; without `rope` they stay."""
    return (q, k) if rope is None else (rotate(q, rope), rotate(k, rope))
