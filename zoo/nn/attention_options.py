"""Options of attention that any decoder can have."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zoo.config.registry import Config
from zoo.nn.positions import LONGEST

Keys = Annotated[int, Field(gt=0, le=LONGEST)]
Cycle = Annotated[tuple[Keys | None, ...], Field(min_length=1)]


class AttentionOptions(Config):
    """What a query sees, and what is done to queries and keys, to large logits and to the heads' output."""

    qk_norm: Literal["head", "all_heads", "unit"] | None = Field(
        None,
        description="RMSNorm of queries and keys before RoPE, per head or over all; unit: nGPT's form",
    )
    qk_clip: float | None = Field(
        None, gt=0, description="largest logit: above it W_q and W_k shrink after the step (Kimi K2: 100)"
    )
    score_size: float | None = Field(
        None, gt=0, description="scores are divided by the square root of this; null: entries per head"
    )
    score_cap: float | None = Field(
        None, gt=0, description="c of scores <- c tanh(scores / c) before the softmax (Gemma 2: 50)"
    )
    gate: Literal["head", "element"] | None = Field(
        None, description="multiply the heads' outputs by sigmoid(x W_g): one per head, or per element"
    )

    window: Keys | Cycle | None = Field(
        None,
        description="how many keys a query sees, its own included; a list has one entry per block and is "
        "repeated if there are more blocks; null: all",
    )

    def window_of(self, block: int) -> int | None:
        """The window of a block, counted from 0; None: every query sees all keys up to its own."""
        return self.window[block % len(self.window)] if isinstance(self.window, tuple) else self.window

    def has_window(self, n_layers: int) -> bool:
        """Whether any of the first n_layers blocks has a window; the cost does not grow with n_layers."""
        return any(self.window[:n_layers]) if isinstance(self.window, tuple) else self.window is not None

    @model_validator(mode="after")
    def _units_have_their_scale(self) -> Self:
        if self.score_size is not None and self.qk_norm == "unit":
            raise ValueError("score_size is not for unit queries and keys, whose scores have their own scale")
        return self

    @model_validator(mode="after")
    def _nothing_to_clip(self) -> Self:
        if self.qk_clip is not None and self.qk_norm is not None:
            raise ValueError("qk_clip has nothing to clip with qk_norm; expected one of the two")
        return self
