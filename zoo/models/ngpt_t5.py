"""nGPT's encoder-decoder: the architecture of T5 with every vector on the hypersphere.

Encoder:  h_A <- Norm(ATTN(h));            h <- Norm(h + alpha_A (h_A - h))
          h_M <- Norm(MLP(h));             h <- Norm(h + alpha_M (h_M - h));   memory <- h
Decoder:  h_A <- Norm(ATTN(h));            h <- Norm(h + alpha_A (h_A - h))
          h_C <- Norm(CROSS(h, memory));   h <- Norm(h + alpha_C (h_C - h))
          h_M <- Norm(MLP(h));             h <- Norm(h + alpha_M (h_M - h))
          logits <- (E_out h) s_z

The authors call this extension straightforward (section 2): the attention to the source is one more step on
the sphere. Its queries and keys are normalised and scaled like all others, but have no positions, because
those of the target are not related to those of the source. There are no normalisation layers and no dropout.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.encoder_decoder import DecoderCache, EncoderDecoder, EncoderDecoderConfig, check_prefix
from zoo.models.hypersphere import HypersphereConfig
from zoo.models.inputs import check_mask, check_tokens, key_mask
from zoo.nn.attention import Attention
from zoo.nn.biased import BiasedAttention
from zoo.nn.cross_attention import CrossAttention, SourceCache
from zoo.nn.kv_cache import LayerCache
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import ScaledSwiGLU
from zoo.nn.positions import CachePosition, positions
from zoo.nn.qk import RotaryThenScaledNorm
from zoo.nn.rope import Rope, rotation
from zoo.spec import Module
from zoo.utils.untyped import Kwargs


@MODELS.register
class NGPTT5Config(HypersphereConfig, EncoderDecoderConfig):
    """Normalised encoder-decoder on the hypersphere: nGPT's parts in T5's architecture."""

    default_init: ClassVar[str] = "ngpt"
    type: Literal["ngpt-t5"] = "ngpt-t5"
    rope_base: float = Field(10000.0, gt=0, description="base of the rotary frequencies")

    @model_validator(mode="after")
    def _heads_are_even(self) -> Self:
        if self.head_size % 2:
            raise ValueError(f"the head size {self.head_size} is odd, but RoPE rotates pairs")
        return self

    def build(self) -> NGPTT5:
        """The model, uninitialised."""
        self.warn_of_no_effect()
        return NGPTT5(self)


class EncoderBlock(Module):
    """Attention and MLP, each a step on the sphere."""

    def __init__(self, c: NGPTT5Config, first: bool) -> None:
        super().__init__()
        self.attention = BiasedAttention(**_attention(c, c.encoder_branches))
        self.mlp = ScaledSwiGLU(c.d_model, c.mlp_size, c.encoder_branches, c.s_u, c.s_nu)
        self.attention_residual = c.residual(c.d_model, c.alpha, first)
        self.mlp_residual = c.residual(c.d_model, c.alpha)

    def forward(self, h: Tensor, rope: Rope, mask: Tensor | None) -> Tensor:
        """(batch, source, d), unit norm -> the same."""
        h = self.attention_residual(h, self.attention, rope, mask)
        h = self.mlp_residual(h, self.mlp)
        return h


class DecoderBlock(Module):
    """Attention to the target so far, attention to the source and MLP, each a step on the sphere."""

    def __init__(self, c: NGPTT5Config, first: bool) -> None:
        super().__init__()
        self.attention = Attention(**_attention(c, c.decoder_branches))
        self.cross = CrossAttention(**_attention(c, c.decoder_branches))
        self.mlp = ScaledSwiGLU(c.d_model, c.mlp_size, c.decoder_branches, c.s_u, c.s_nu)
        self.attention_residual = c.residual(c.d_model, c.alpha, first)
        self.cross_residual = c.residual(c.d_model, c.alpha)
        self.mlp_residual = c.residual(c.d_model, c.alpha)

    def forward(
        self,
        h: Tensor,
        rope: Rope,
        memory: Tensor,
        mask: Tensor | None,
        cache: LayerCache | None = None,
        position: CachePosition = 0,
        source_cache: SourceCache | None = None,
    ) -> Tensor:
        """(batch, time, d), unit norm -> the same."""
        h = self.attention_residual(h, self.attention, rope, cache, position)
        h = self.cross_residual(h, self.cross, memory, mask, source_cache)
        h = self.mlp_residual(h, self.mlp)
        return h


class NGPTT5(EncoderDecoder):
    """Encoder-decoder with nGPT's parts, from a source and a prefix of the target to logits."""

    def __init__(self, c: NGPTT5Config) -> None:
        super().__init__()
        self.config: NGPTT5Config = c
        std = c.d_model**-0.5
        self.embedding = Embedding(
            ("vocab", c.vocab_size), c.d_model, output_std=std, sphere="embed", normalised=c.qk_norm
        )  # as in `zoo.models.ngpt`
        self.encoder_blocks = nn.ModuleList(EncoderBlock(c, first=i == 0) for i in range(c.n_layers))
        self.decoder_blocks = nn.ModuleList(DecoderBlock(c, first=i == 0) for i in range(c.decoder_layers))
        self.read_out = LMHead(self.embedding, c.logit_scaling(), input_std=std, sphere="embed")

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read a source: (batch, source) int64 -> (batch, source, d), unit norm."""
        check_tokens(source)
        check_mask(mask, source)
        rope = self.rope(0, source.shape[1], source.device)
        h: Tensor = self.embedding(source)
        for block in self.encoder_blocks:
            h = block(h, rope, key_mask(mask))
        return h

    def decode(
        self, prefix: Tensor, memory: Tensor, mask: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """Continue a target: (batch, time) int64 -> (batch, time, d), unit norm."""
        position = check_prefix(prefix, cache)
        rope = self.rope(position, prefix.shape[1], prefix.device)
        h: Tensor = self.embedding(prefix)
        for i, block in enumerate(self.decoder_blocks):
            layer = (cache.layers[i], position, cache.sources[i]) if cache else ()
            h = block(h, rope, memory, key_mask(mask), *layer)
        if cache:
            cache.position += prefix.shape[1]
        return h

    def rope(self, position: CachePosition, time: int, device: torch.device) -> Rope:
        """Cosines and sines (time, h / 2) of the positions from `position` on."""
        position_ids = positions(position, time, device)
        return rotation(position_ids, self.config.head_size, self.config.rope_base)


def _attention(c: NGPTT5Config, residual_branches: int) -> Kwargs:
    """The arguments that all attentions share."""
    return {
        "d_model": c.d_model,
        "n_heads": c.n_heads,
        "n_kv_heads": c.n_heads,
        "qk": RotaryThenScaledNorm(c.n_heads, c.head_size, c.d_model, c.s_qk, c.qk_norm),
        "scale": math.sqrt(c.head_size),
        "residual_branches": residual_branches,
        "head_size": c.head_size,
        "input_std": c.d_model**-0.5,
        "sphere": "embed",
        "qk_normalised": c.qk_norm,
        "output_normalised": True,
        "qk_rescaled": c.s_qk.trained,
    }
