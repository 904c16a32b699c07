"""Decoders with rotary positions (RoPE)."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.models.decoder import Decoder, DecoderConfig
from zoo.nn.positions import CachePosition, positions
from zoo.nn.qk import Rotary
from zoo.nn.rope import Rope, RopeScaling, rotation
from zoo.spec import Module


class RotaryDecoderConfig(DecoderConfig):
    """The sizes of a decoder with RoPE."""

    rope_base: float = Field(10000.0, gt=0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = Field(
        None, description="change of the frequencies for contexts that are longer than those of the training"
    )

    def bare_qk(self) -> Module:
        """Rotated queries and keys."""
        return Rotary()

    @model_validator(mode="after")
    def _heads_are_even(self) -> Self:
        if self.head_size % 2:
            what = "d_head" if self.d_head else "d_model / n_heads"
            raise ValueError(f"{what} = {self.head_size} is odd, but RoPE rotates pairs")
        return self


class RotaryDecoder(Decoder):
    """A decoder whose blocks rotate queries and keys by their positions."""

    config: RotaryDecoderConfig

    def rope(
        self, position: CachePosition, time: int, device: torch.device, padding: Tensor | None = None
    ) -> Rope | None:
        """The rotations of queries and keys, as described in `Decoder`."""
        c = self.config
        where = positions(position, time, device, padding)
        return rotation(where, c.head_size, c.rope_base, c.rope_scaling)
