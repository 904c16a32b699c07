"""Decoders with rotary positions (RoPE)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator
from torch import Tensor

from zoo.models.decoder import Decoder, DecoderConfig
from zoo.nn.qk import Rotary
from zoo.nn.rope import Rope, rotation
from zoo.nn.rope_scaling import RopeScaling
from zoo.spec import Module


class RotaryDecoderConfig(DecoderConfig):
    """The sizes of a decoder with RoPE."""

    rope_base: float = Field(10000.0, gt=0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = Field(
        None, description="change of the frequencies for contexts that are longer than those of the training"
    )
    rope_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="part of the entries of a head that is rotated, rounded down",
    )
    rope_blocks: Annotated[tuple[bool, ...], Field(min_length=1)] = Field(
        (True,),
        description="whether queries and keys are rotated (SmolLM 3: three of four): one entry per "
        "block, repeated if there are more blocks",
    )
    rope_window_base: float | None = Field(
        None,
        gt=0,
        description="base in blocks with a window, without rope_scaling (Gemma 3); null: as in the others",
    )

    @property
    def rotated(self) -> int:
        """Entries of a head that are rotated."""
        return int(self.head_size * self.rope_fraction)

    def bare_qk(self) -> Module:
        """Rotated queries and keys."""
        return Rotary()

    @model_validator(mode="after")
    def _heads_are_even(self) -> Self:
        if self.rotated % 2:
            what = "d_head" if self.d_head else "d_model / n_heads"
            what = what if self.rope_fraction == 1 else f"rope_fraction * {what}, rounded down,"
            raise ValueError(f"{what} = {self.rotated} is odd, but RoPE rotates pairs")
        if self.rotated == 0:
            raise ValueError(f"rope_fraction {self.rope_fraction} of {self.head_size} entries is none")
        if self.rope_scaling is not None:
            self.rope_scaling.check(self.rotated, self.rope_base)
        if self.rope_window_base is not None and not self.attention.has_window(self.n_layers):
            raise ValueError("rope_window_base has no effect without a window; expected attention.window")
        return self

    @model_validator(mode="after")
    def _rotations_are_used(self) -> Self:
        """Refuse changes of frequencies by which no block rotates."""
        if self.rope_scaling is None and self.rope_window_base is None:
            return self
        # Both patterns repeat, so that the cost does not grow with n_layers.
        window = self.attention.window
        period = math.lcm(len(self.rope_blocks), len(window) if isinstance(window, tuple) else 1)
        blocks = filter(self.rotates, range(min(self.n_layers, period)))
        has_window = {self.attention.window_of(i) is not None for i in blocks}
        if self.rope_window_base is not None and True not in has_window:
            raise ValueError("rope_window_base has no effect: no block with a window is among rope_blocks")
        is_scaled = has_window if self.rope_window_base is None else has_window - {True}
        if self.rope_scaling is not None and not is_scaled:
            raise ValueError(
                "rope_scaling has no effect: it is for blocks that rotate, and, with rope_window_base, only "
                "for those without a window"
            )
        return self

    def rotates(self, block: int) -> bool:
        """Whether a block, counted from 0, rotates queries and keys."""
        return self.rope_blocks[block % len(self.rope_blocks)]


class RotaryDecoder(Decoder):
    """A decoder whose blocks rotate queries and keys by their positions."""

    config: RotaryDecoderConfig

    @property
    def rotates_by_length(self) -> bool:
        """Whether `rope_scaling` chooses the frequencies by the length of a text."""
        return self.config.rope_scaling is not None and self.config.rope_scaling.by_length

    def ropes(self, position_ids: Tensor, length: int | Tensor | None = None) -> Sequence[Rope | None]:
        """The rotations of queries and keys, as described in `Decoder`; equal blocks share the tensors."""
        c = self.config
        rope = rotation(position_ids, c.rotated, c.rope_base, c.rope_scaling, length)
        local = rope if c.rope_window_base is None else rotation(position_ids, c.rotated, c.rope_window_base)
        kinds = [local if c.attention.window_of(i) else rope for i in range(c.n_layers)]
        return [kind if c.rotates(i) else None for i, kind in enumerate(kinds)]
