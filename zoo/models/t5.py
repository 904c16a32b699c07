"""T5: the encoder-decoder that learns to fill in spans (Raffel et al. 2020; Shazeer 2020).

Encoder:  h <- h + ATTN(RMSNorm(h));                    h <- h + MLP(RMSNorm(h));  memory <- RMSNorm(h)
Decoder:  h <- h + ATTN(RMSNorm(h));  h <- h + CROSS(RMSNorm(h), memory);  h <- h + MLP(RMSNorm(h))
          logits <- E_out RMSNorm(h)

There are no biases, and the scores are not divided by sqrt(d_head): the queries are initialised smaller by
that factor instead. Positions enter as a bias of the scores of self-attention, with one table for each stack.
The MLP is a gated GELU. Source and target share the input embedding, and the head has a matrix of its own.
This is v1.1. The first T5 has `mlp: relu` and `tied: true`: E_out is then the embedding, and the hidden
states are divided by sqrt(d_model) before the head.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.encoder_decoder import DecoderCache, EncoderDecoder, EncoderDecoderConfig, check_prefix
from zoo.models.inputs import check_mask, check_tokens, key_mask
from zoo.nn.biased import BiasedAttention
from zoo.nn.cross_attention import CrossAttention, SourceCache
from zoo.nn.kv_cache import LayerCache
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import GatedGELU, ReLUMLP
from zoo.nn.norm import RMSNorm
from zoo.nn.positions import LONGEST, CachePosition, visible
from zoo.nn.qk import NoTransform
from zoo.nn.relative_bias import RelativeBias
from zoo.nn.residual import PreNorm
from zoo.spec import NO_POWERS, Module, WidthPowers
from zoo.utils.untyped import Kwargs


@MODELS.register
class T5Config(EncoderDecoderConfig):
    """Encoder-decoder with relative position biases, gated GELU or ReLU, and RMSNorm (T5)."""

    default_init: ClassVar[str] = "t5"
    type: Literal["t5"] = "t5"
    mlp: Literal["geglu", "relu"] = Field("geglu", description="three matrices (v1.1) or two (the first T5)")
    tied: bool = Field(False, description="use the embedding, over sqrt(d_model), as the head (the first T5)")
    buckets: int = Field(32, gt=0, multiple_of=4, description="buckets of distances")
    max_distance: int = Field(128, gt=0, le=LONGEST, description="distances from this one on share a bucket")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of streams, branches, MLP and probabilities")
    norm_eps: float = Field(1e-6, gt=0, description="added to the mean square in RMSNorm")

    @model_validator(mode="after")
    def _buckets_widen(self) -> Self:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance {self.max_distance} leaves nothing to the wide buckets: "
                f"buckets / 2 = {self.buckets // 2} are single distances"
            )
        return self

    @property
    def ties_embedding(self) -> bool:
        """Whether the head multiplies by the table of the embedding."""
        return self.tied

    def build(self) -> T5:
        """The model, uninitialised."""
        return T5(self)


class EncoderBlock(Module):
    """Attention and MLP, each normalised before and added to the stream."""

    def __init__(self, c: T5Config) -> None:
        super().__init__()
        self.attention = BiasedAttention(**_attention(c, c.encoder_branches))
        self.mlp = _mlp(c, c.encoder_branches)
        self.attention_residual = PreNorm(c.d_model, c.norm_eps, c.dropout)
        self.mlp_residual = PreNorm(c.d_model, c.norm_eps, c.dropout)

    def forward(self, h: Tensor, bias: Tensor) -> Tensor:
        """(batch, source, d) -> the same."""
        h = self.attention_residual(h, self.attention, None, bias)
        h = self.mlp_residual(h, self.mlp)
        return h


class DecoderBlock(Module):
    """Attention to the target so far, attention to the source, MLP."""

    def __init__(self, c: T5Config) -> None:
        super().__init__()
        self.attention = BiasedAttention(**_attention(c, c.decoder_branches))
        self.cross = CrossAttention(**_attention(c, c.decoder_branches))
        self.mlp = _mlp(c, c.decoder_branches)
        self.attention_residual = PreNorm(c.d_model, c.norm_eps, c.dropout)
        self.cross_residual = PreNorm(c.d_model, c.norm_eps, c.dropout)
        self.mlp_residual = PreNorm(c.d_model, c.norm_eps, c.dropout)

    def forward(
        self,
        h: Tensor,
        bias: Tensor,
        memory: Tensor,
        mask: Tensor | None,
        cache: LayerCache | None = None,
        position: CachePosition = 0,
        source_cache: SourceCache | None = None,
    ) -> Tensor:
        """(batch, time, d) -> the same."""
        h = self.attention_residual(h, self.attention, None, bias, cache, position)
        h = self.cross_residual(h, self.cross, memory, mask, source_cache)
        h = self.mlp_residual(h, self.mlp)
        return h


class T5(EncoderDecoder):
    """T5's encoder-decoder, from a source and a prefix of the target to logits."""

    def __init__(self, c: T5Config) -> None:
        super().__init__()
        self.config: T5Config = c
        embed = ("embed", c.d_model)
        read_std = c.d_model**-0.5 if c.tied else 1.0
        powers = WidthPowers(input_std=-0.5, logits=-0.5) if c.tied else NO_POWERS
        self.embedding = Embedding(
            ("vocab", c.vocab_size), c.d_model, input_std=read_std, tied=c.tied, powers=powers
        )
        self.encoder_bias = RelativeBias(c.n_heads, c.buckets, c.max_distance, both_directions=True)
        self.encoder_blocks = nn.ModuleList(EncoderBlock(c) for _ in range(c.n_layers))
        self.encoder_norm = RMSNorm(embed, c.norm_eps)
        self.decoder_bias = RelativeBias(c.n_heads, c.buckets, c.max_distance, both_directions=False)
        self.decoder_blocks = nn.ModuleList(DecoderBlock(c) for _ in range(c.decoder_layers))
        self.decoder_norm = RMSNorm(embed, c.norm_eps)
        self.read_out = LMHead(self.embedding, tied=c.tied, factor=read_std)
        self.dropout = nn.Dropout(c.dropout)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read a source: (batch, source) int64 -> (batch, source, d)."""
        check_tokens(source)
        check_mask(mask, source)
        length = source.shape[1]
        bias = self.encoder_bias(0, length, length, source.device).unsqueeze(0)
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None], -torch.inf)
        h: Tensor = self.dropout(self.embedding(source))
        for block in self.encoder_blocks:
            h = block(h, bias)
        h = self.dropout(self.encoder_norm(h))
        return h

    def remove_head(self) -> None:
        """Remove the decoder."""
        super().remove_head()
        del self.decoder_bias, self.decoder_norm

    def decode(
        self, prefix: Tensor, memory: Tensor, mask: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """Go on with a target: (batch, time) int64 -> (batch, time, d)."""
        position = check_prefix(prefix, cache)
        time = prefix.shape[1]
        keys = cache.key_count(time) if cache else time
        bias = self.decoder_bias(position, time, keys, prefix.device)
        seen = visible(position, time, keys, prefix.device)
        bias = bias.masked_fill(~seen, -torch.inf).unsqueeze(0)
        h: Tensor = self.dropout(self.embedding(prefix))
        for i, block in enumerate(self.decoder_blocks):
            layer = (cache.layers[i], position, cache.sources[i]) if cache else ()
            h = block(h, bias, memory, key_mask(mask), *layer)
        if cache:
            cache.position += time
        h = self.dropout(self.decoder_norm(h))
        return h


def _mlp(c: T5Config, residual_branches: int) -> Module:
    kinds: dict[str, type[GatedGELU | ReLUMLP]] = {"geglu": GatedGELU, "relu": ReLUMLP}
    return kinds[c.mlp](c.d_model, c.mlp_size, residual_branches, c.dropout)


def _attention(c: T5Config, residual_branches: int) -> Kwargs:
    """The arguments that all attentions share."""
    return {
        "d_model": c.d_model,
        "n_heads": c.n_heads,
        "n_kv_heads": c.n_heads,
        "qk": NoTransform(),
        "scale": 1.0,
        "query_std": c.head_size**-0.5,
        "head_size": c.head_size,
        "residual_branches": residual_branches,
        "dropout": c.dropout,
    }
