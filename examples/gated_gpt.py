"""A plugin: a GPT whose attention has an output gate, as a choice of `model.type`.

h <- h + sigmoid(W_g x) * ATTN(x) with x = RMSNorm(h); after Qiu et al., Gated Attention for Large Language
Models (arXiv 2505.06708). All else is zoo's: RoPE, the MLP, the head, the cache of keys and values.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.kv_cache import LayerCache
from zoo.nn.linear import Embedding, Linear, matrix
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import SwiGLU
from zoo.nn.norm import RMSNorm
from zoo.nn.positions import CachePosition
from zoo.nn.qk import Rotary
from zoo.nn.residual import PreNorm
from zoo.nn.rope import Rope
from zoo.spec import Module


@MODELS.register
class GatedGPTConfig(RotaryDecoderConfig):
    """GPT whose attention has an output gate."""

    default_init: ClassVar[str] = "gpt2"
    type: Literal["gated-gpt"] = "gated-gpt"

    def build(self) -> GatedGPT:
        """The model, uninitialised."""
        return GatedGPT(self)


class GatedAttention(Module):
    """sigmoid(W_g x) * ATTN(x)."""

    def __init__(self, c: GatedGPTConfig) -> None:
        super().__init__()
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            qk=Rotary(),
            scale=c.head_size**-0.5,
            residual_branches=c.residual_branches,
            head_size=c.head_size,
        )
        self.gate = Linear(matrix(("gate", c.d_model), ("embed", c.d_model)))

    def forward(self, x: Tensor, rope: Rope, cache: LayerCache | None, position: CachePosition) -> Tensor:
        """(batch, time, d) -> the same."""
        gated: Tensor = self.gate(x).sigmoid() * self.attention(x, rope, cache, position)
        return gated


class Block(Module):
    """Gated attention and an MLP, each normalised before and added to the stream."""

    def __init__(self, c: GatedGPTConfig) -> None:
        super().__init__()
        self.attention, self.attention_residual = GatedAttention(c), PreNorm(c.d_model, 1e-5)
        self.mlp, self.mlp_residual = (
            SwiGLU(c.d_model, c.mlp_size, c.residual_branches),
            PreNorm(c.d_model, 1e-5),
        )

    def forward(
        self, h: Tensor, rope: Rope, cache: LayerCache | None = None, position: CachePosition = 0
    ) -> Tensor:
        """(batch, time, d) -> the same."""
        h = self.attention_residual(h, self.attention, rope, cache, position)
        h = self.mlp_residual(h, self.mlp)
        return h


class GatedGPT(RotaryDecoder):
    """Tokens -> logits."""

    def __init__(self, c: GatedGPTConfig) -> None:
        super().__init__()
        self.config: GatedGPTConfig = c
        self.embedding = Embedding(("vocab", c.vocab_size), c.d_model, tied=c.tied)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.norm = RMSNorm(("embed", c.d_model), 1e-5)
        self.read_out = LMHead(self.embedding, tied=c.tied)
