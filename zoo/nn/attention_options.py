"""Options of attention that any decoder can have."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from zoo.config.registry import Config


class AttentionOptions(Config):
    """What is done to queries and keys, to large logits, and to the output of the heads."""

    qk_norm: Literal["head", "all_heads", "unit"] | None = Field(
        None,
        description="RMSNorm of queries and keys before RoPE, per head or over all; unit: nGPT's form",
    )
    qk_clip: float | None = Field(
        None, gt=0, description="largest logit: above it W_q and W_k shrink after the step (Kimi K2: 100)"
    )
    gate: Literal["head", "element"] | None = Field(
        None, description="multiply what the heads give by sigmoid(x W_g): one per head, or per element"
    )

    @model_validator(mode="after")
    def _nothing_to_clip(self) -> Self:
        if self.qk_clip is not None and self.qk_norm is not None:
            raise ValueError("qk_clip has nothing to clip with qk_norm; expected one of both")
        return self
