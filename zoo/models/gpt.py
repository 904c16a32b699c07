"""GPT: the pre-norm decoder that nGPT and WeSaR are compared with.

h <- h + ATTN(RMSNorm(h));  h <- h + MLP(RMSNorm(h));  logits <- E_out RMSNorm(h)

With `norms: after` the norms stand behind the branches, as in OLMo 2:

h <- h + RMSNorm(ATTN(h));  h <- h + RMSNorm(MLP(h));  logits <- E_out RMSNorm(h)

and with `norms: both` in front of them and behind, as in Gemma 2.

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
from zoo.models.block import PreNormBlock
from zoo.models.decoder import NORM_AND_HEAD
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import GELUMLP, GatedGELU, SwiGLU
from zoo.nn.norm import CentredRMSNorm, RMSNorm, RMSNormClass
from zoo.nn.residual import BranchNorm, PreNorm, SandwichNorm
from zoo.spec import NO_POWERS, ScalePair, WidthPowers


@MODELS.register
class GPTConfig(RotaryDecoderConfig):
    """Decoder: RMSNorm before branches or after them, RoPE, SwiGLU or GELU, grouped queries, QK-norm."""

    default_init: ClassVar[str] = "gpt2"
    reads_documents: ClassVar[bool] = True
    type: Literal["gpt"] = "gpt"
    mlp: Literal["swiglu", "geglu", "gelu"] = Field(
        "swiglu", description="three matrices with SiLU (nGPT) or GELU (Gemma), or two (WeSaR)"
    )
    norms: Literal["before", "after", "both"] = Field(
        "before", description="where a branch has norms: before it, after it (OLMo 2) or both (Gemma 2)"
    )
    centred_norms: bool = Field(False, description="norms multiply by 1 + a vector that starts at 0 (Gemma)")
    scaled_embedding: bool = Field(
        False, description="multiply the vectors of tokens by sqrt(d_model) (Vaswani et al. 2017; Gemma)"
    )
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

    @property
    def norm(self) -> RMSNormClass:
        """The class of every norm."""
        return CentredRMSNorm if self.centred_norms else RMSNorm

    @property
    def lookup_std(self) -> float:
        """The standard deviation of looked-up vectors, which `scaled_embedding` multiplies by sqrt(d)."""
        return self.d_model**-0.5 if self.scaled_embedding else 1.0

    @property
    def embedding_powers(self) -> WidthPowers:
        """How `lookup_std` and the factor of `scaled_embedding` depend on the width."""
        if not self.scaled_embedding:
            return NO_POWERS
        return WidthPowers(output_std=0.0 if self.tied else -0.5, lookup_std=-0.5, lookups=0.5)

    def build(self) -> GPT:
        """The model, uninitialised."""
        return GPT(self)


class Block(PreNormBlock):
    """Attention and MLP, each with a norm of its own, added to the stream."""

    def __init__(self, c: GPTConfig, i: int) -> None:
        super().__init__()
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            residual_branches=c.residual_branches,
            head_size=c.head_size,
            **c.attention_arguments(i, c.norm_eps, c.qk_norm, normalised=c.norms != "before", norm=c.norm),
            qkv_bias=c.qkv_bias,
        )
        mlp = {"swiglu": SwiGLU, "geglu": GatedGELU, "gelu": GELUMLP}[c.mlp]
        self.mlp = mlp(c.d_model, c.mlp_size, c.residual_branches, normalised=c.norms != "before")
        residual = {"before": PreNorm, "after": BranchNorm, "both": SandwichNorm}[c.norms]
        self.attention_residual = residual(c.d_model, c.norm_eps, norm=c.norm)
        self.mlp_residual = residual(c.d_model, c.norm_eps, norm=c.norm)
        # Otherwise no norm is in front of a branch, or its parameter is the difference of a scale from 1.
        self.scales_follow = c.norms != "after" and not c.centred_norms

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """Norms in front of branches and the matrices behind them."""
        return super().scale_pairs if self.scales_follow else []


class GPT(RotaryDecoder):
    """Pre-norm or norm-after decoder with RMSNorm and RoPE, from tokens to logits."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        self.config: GPTConfig = c
        self.embedding = Embedding(
            ("vocab", c.vocab_size),
            c.d_model,
            output_std=1.0 if c.tied else c.lookup_std,
            lookup_std=c.lookup_std,
            tied=c.tied,
            powers=c.embedding_powers,
        )
        self.embedding_scale = c.d_model**0.5 if c.scaled_embedding else None
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.n_layers))
        self.norm = c.norm(("embed", c.d_model), c.norm_eps)
        self.read_out = LMHead(self.embedding, tied=c.tied, soft_cap=c.soft_cap)

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The last norm and a head of its own."""
        return [] if self.config.tied or self.config.centred_norms else [NORM_AND_HEAD]

    def embed(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The vectors of the tokens, (batch, time, d), times sqrt(d_model) with `scaled_embedding`."""
        h: Tensor = self.embedding(tokens)
        # The factor is rounded to the dtype of the vectors, as it was when Gemma was trained.
        return h if self.embedding_scale is None else h * h.new_tensor(self.embedding_scale)
