"""Rotary position embedding: a true rotation of the pairs (i, i + h/2), as in LLaMA."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("zoo::rotation", mutates_args=())
def rotation(
    start: int, length: int, head_size: int, base: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The angles of RoPE, as cosines and sines.

    Opaque to inductor, which would otherwise take cosines again for every entry of every layer.

    Args:
        start: position of the first token.
        length: number of tokens.
        head_size: entries per head, even.
        base: 10000 in the papers.
        device: where the result lives.

    Returns:
        Two float32 tensors (length, head_size / 2).
    """
    frequency = base ** (-torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size)
    position = torch.arange(start, start + length, device=device, dtype=torch.float32)
    angle = torch.outer(position, frequency)
    return angle.cos(), angle.sin()


@rotation.register_fake
def _(start: int, length: int, head_size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    cos, sin = (torch.empty(length, head_size // 2, device=device) for _ in range(2))
    return cos, sin


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (x_i, x_{i + h/2}) by the angle of its position and frequency.

    Args:
        x: (batch, time, heads, h).
        rope: cosines and sines (time, h / 2) from `rotation`.

    Returns:
        The same shape and dtype.
    """
    cos, sin = (r.unsqueeze(-2).to(x.dtype) for r in rope)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
