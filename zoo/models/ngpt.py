"""nGPT: the normalised transformer, representation learning on the hypersphere.

    h_A <- Norm(ATTN(h));   h <- Norm(h + alpha_A (h_A - h))
    h_M <- Norm(MLP(h));    h <- Norm(h + alpha_M (h_M - h))
    logits <- (E_out h) s_z

There are no normalisation layers. Every vector of length d_model in every matrix has unit norm: it is
normalised after each optimizer step (`zoo.nn.sphere`), not in the forward pass.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import model_validator
from torch import nn

from zoo.config.registry import MODELS
from zoo.models.block import ResidualBlock
from zoo.models.hypersphere import HypersphereConfig
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import ScaledSwiGLU
from zoo.nn.qk import RotaryThenScaledNorm


@MODELS.register
class NGPTConfig(HypersphereConfig, RotaryDecoderConfig):
    """Normalised transformer on the hypersphere (nGPT), with every ablation of the paper."""

    default_init: ClassVar[str] = "ngpt"
    reads_documents: ClassVar[bool] = True
    type: Literal["ngpt"] = "ngpt"

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return self.n_layers

    @model_validator(mode="after")
    def _own_qk_norm(self) -> Self:
        options = self.attention
        if options.qk_norm or options.qk_clip or options.score_size:
            raise ValueError(
                "attention.qk_norm, attention.qk_clip and attention.score_size are not for nGPT, which has "
                "its own qk_norm"
            )
        return self

    def build(self) -> NGPT:
        """The model, uninitialised."""
        self.warn_of_no_effect()
        return NGPT(self)


class Block(ResidualBlock):
    """Attention and MLP, each a step on the sphere."""

    def __init__(self, c: NGPTConfig, i: int) -> None:
        super().__init__()
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            qk=RotaryThenScaledNorm(c.kv_heads, c.head_size, c.d_model, c.s_qk, c.qk_norm),
            scale=math.sqrt(c.head_size),
            residual_branches=c.residual_branches,
            head_size=c.head_size,
            input_std=c.d_model**-0.5,
            sphere="embed",
            qk_normalised=c.qk_norm,
            output_normalised=True,
            qk_rescaled=c.s_qk.trained,
            gate=c.attention.gate,
            window=c.attention.window_of(i),
            score_cap=c.attention.score_cap,
        )
        self.mlp = ScaledSwiGLU(c.d_model, c.mlp_size, c.residual_branches, c.s_u, c.s_nu)
        self.attention_residual = c.residual(c.d_model, c.alpha, first=i == 0)
        self.mlp_residual = c.residual(c.d_model, c.alpha)


class NGPT(RotaryDecoder):
    """nGPT's decoder on the hypersphere, from tokens to logits."""

    def __init__(self, c: NGPTConfig) -> None:
        super().__init__()
        self.config: NGPTConfig = c
        std = c.d_model**-0.5
        # The first connection normalises the vectors, and the first block reads them through q, k and v,
        # whose scales have no effect either if q and k are normalised.
        self.embedding = Embedding(
            ("vocab", c.vocab_size),
            c.d_model,
            output_std=std,
            tied=c.tied,
            sphere="embed",
            normalised=c.qk_norm and not c.tied,
            rescaled=c.qk_norm and c.tied and c.s_z.trained,
        )
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.n_layers))
        self.read_out = LMHead(
            self.embedding, c.logit_scaling(), tied=c.tied, input_std=std, sphere="embed", soft_cap=c.soft_cap
        )
