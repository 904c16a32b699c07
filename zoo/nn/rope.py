"""Rotary position embedding: a true rotation of the pairs (i, i + h/2), as in LLaMA."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, library

from zoo.config.registry import Config


class LinearScaling(Config):
    """Position interpolation: frequencies divided by a factor (Chen et al. 2023, arXiv:2306.15595)."""

    type: Literal["linear"] = "linear"
    factor: float = Field(gt=0, description="divides every frequency")

    def __call__(self, frequency: Tensor) -> Tensor:
        """(h / 2,) -> (h / 2,)."""
        return frequency / self.factor


class Llama3Scaling(Config):
    """Slow rotations become slower, fast ones stay, with linear interpolation between them (Llama 3.1).

    A rotation is slow or fast by its number of turns within the context of the original training.
    """

    type: Literal["llama3"] = "llama3"
    factor: float = Field(gt=0, description="divides the frequencies of slow rotations")
    low_turns: float = Field(1.0, gt=0, description="turns up to which a rotation is slow")
    high_turns: float = Field(4.0, gt=0, description="turns from which a rotation is fast")
    context: int = Field(8192, gt=0, description="tokens of the context in which turns are counted")

    @model_validator(mode="after")
    def _low_below_high(self) -> Self:
        if self.low_turns >= self.high_turns:
            raise ValueError(f"low_turns {self.low_turns} is not below high_turns {self.high_turns}")
        return self

    def __call__(self, frequency: Tensor) -> Tensor:
        """(h / 2,) -> (h / 2,)."""
        turns = self.context * frequency / (2 * math.pi)
        fast = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return (1 - fast) * frequency / self.factor + fast * frequency


RopeScaling = Annotated[LinearScaling | Llama3Scaling, Field(discriminator="type")]


Rope = tuple[Tensor, Tensor]
"""Cosines and sines of the angles of RoPE, float32 (..., time, head_size / 2) each."""


def rotation(
    where: Tensor,
    head_size: int,
    base: float,
    scaling: LinearScaling | Llama3Scaling | None = None,
) -> Rope:
    """The angles of RoPE, as cosines and sines.

    Args:
        where: positions, (..., time) int64.
        head_size: entries per head, even.
        base: 10000 in the papers.
        scaling: change of the frequencies for contexts that are longer than those of the training, or None.

    Returns:
        Two float32 tensors (..., time, head_size / 2), where `where` lives.
    """
    even = torch.arange(0, head_size, 2, device=where.device, dtype=torch.float32)
    frequency = base ** (-even / head_size)
    cos, sin = _angles(where, frequency if scaling is None else scaling(frequency))
    return cos, sin


@library.custom_op("zoo::angles", mutates_args=())
def _angles(where: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., h / 2) of the frequencies (h / 2,) at the positions (...).

    A custom operator, because inductor would otherwise recompute the cosines in every layer.
    """
    angle = where.to(frequency.dtype).unsqueeze(-1) * frequency
    return angle.cos(), angle.sin()


@_angles.register_fake
def _(where: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (frequency.new_empty(*where.shape, len(frequency)) for _ in range(2))
    return cos, sin


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate each pair (x_i, x_{i + h/2}) by the angle of its position and frequency, at least in float32.

    Args:
        x: (batch, time, heads, h).
        rope: cosines and sines (time, h / 2) from `rotation`.

    Returns:
        The same shape and dtype.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (r.unsqueeze(-2).to(exact) for r in rope)
    first, second = x.to(exact).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)
