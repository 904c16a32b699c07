"""GPT: the pre-norm decoder that nGPT and WeSaR are compared with.

h <- h + ATTN(RMSNorm(h));  h <- h + MLP(RMSNorm(h));  logits <- E_out RMSNorm(h)

RoPE on queries and keys, no biases. With `mlp: swiglu` it is the baseline of the nGPT paper (section 2) and,
with the options for queries and keys, the architecture of Llama, Mistral and Qwen. With `mlp: gelu` it is the
model of the WeSaR paper (section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.kv_cache import LayerCache
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import GELUMLP, SwiGLU
from zoo.nn.norm import RMSNorm
from zoo.nn.positions import CachePosition
from zoo.nn.residual import PreNorm, norm_before
from zoo.nn.rope import Rope
from zoo.spec import Module, ScalePair


@MODELS.register
class GPTConfig(RotaryDecoderConfig):
    """Pre-norm decoder: RMSNorm, RoPE, SwiGLU or GELU, grouped queries, QK-norm."""

    default_init: ClassVar[str] = "gpt2"
    type: Literal["gpt"] = "gpt"
    mlp: Literal["swiglu", "gelu"] = Field("swiglu", description="three matrices (nGPT) or two (WeSaR)")
    qkv_bias: bool = Field(False, description="biases of queries, keys and values (Qwen 2)")
    qk_norm: bool = Field(False, description="RMSNorm of queries and keys per head, before RoPE")
    norm_eps: float = Field(1e-5, gt=0, description="added to the mean square in RMSNorm")

    @model_validator(mode="after")
    def _one_qk_norm(self) -> Self:
        if self.qk_norm and (self.attention.qk_norm or self.attention.qk_clip):
            raise ValueError(
                "qk_norm: true is attention.qk_norm: head; expected neither attention.qk_norm nor qk_clip"
            )
        return self

    def build(self) -> GPT:
        """The model, uninitialised."""
        return GPT(self)


class Block(Module):
    """Attention and MLP, each normalised before and added to the stream."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            residual_branches=c.residual_branches,
            head_size=c.head_size,
            **c.attention_facts(c.norm_eps, c.qk_norm),
            qkv_bias=c.qkv_bias,
        )
        mlp = {"swiglu": SwiGLU, "gelu": GELUMLP}[c.mlp]
        self.mlp = mlp(c.d_model, c.mlp_size, c.residual_branches)
        self.attention_residual = PreNorm(c.d_model, c.norm_eps)
        self.mlp_residual = PreNorm(c.d_model, c.norm_eps)

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """Both norms and the matrices behind them."""
        return [
            norm_before("attention_residual", "attention", self.attention.reads),
            norm_before("mlp_residual", "mlp", self.mlp.reads),
        ]

    def forward(
        self, h: Tensor, rope: Rope, cache: LayerCache | None = None, position: CachePosition = 0
    ) -> Tensor:
        """(batch, time, d) -> the same."""
        h = self.attention_residual(h, self.attention, rope, cache, position)
        h = self.mlp_residual(h, self.mlp)
        return h


class GPT(RotaryDecoder):
    """Tokens -> logits."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        self.config: GPTConfig = c
        self.embedding = Embedding(("vocab", c.vocab_size), c.d_model, tied=c.tied)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.norm = RMSNorm(("embed", c.d_model), c.norm_eps)
        self.read_out = LMHead(self.embedding, tied=c.tied, soft_cap=c.soft_cap)

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The last norm and a head of its own."""
        head: ScalePair = ((("norm.scale", "entries"),), (("read_out.matrix.weight", "columns"),))
        return [] if self.config.tied else [head]

    def final_norm(self, h: Tensor) -> Tensor:
        """Normalise the stream, (batch, time, d)."""
        normalised: Tensor = self.norm(h)
        return normalised
