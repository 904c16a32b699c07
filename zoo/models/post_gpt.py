"""GPT with post-norm, on which WeSaR's paper compares sigma-Reparam besides pre-norm (section 5.3).

h <- RMSNorm(h + ATTN(h));  h <- RMSNorm(h + MLP(h));  logits <- E_out h

Otherwise it is the decoder of the WeSaR paper: RoPE on queries and keys, GELU, no biases. There is no norm in
front of the head, because the last block normalises the stream.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from zoo.config.registry import MODELS
from zoo.models.block import ResidualBlock
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import GELUMLP
from zoo.nn.norm import RMSNorm
from zoo.nn.residual import PostNorm


@MODELS.register
class PostGPTConfig(RotaryDecoderConfig):
    """Post-norm decoder: RMSNorm after every residual connection, RoPE, GELU."""

    default_init: ClassVar[str] = "gpt2"
    reads_documents: ClassVar[bool] = True
    type: Literal["gpt-post"] = "gpt-post"
    norm_eps: float = Field(1e-5, gt=0, description="added to the mean square in RMSNorm")

    def build(self) -> PostGPT:
        """The model, uninitialised."""
        return PostGPT(self)


class Block(ResidualBlock):
    """Attention and MLP, each added to the stream, which is then normalised."""

    def __init__(self, c: PostGPTConfig, i: int) -> None:
        super().__init__()
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            residual_branches=c.residual_branches,
            head_size=c.head_size,
            **c.attention_arguments(i, c.norm_eps),
        )
        self.mlp = GELUMLP(c.d_model, c.mlp_size, c.residual_branches)
        self.attention_residual = PostNorm(RMSNorm(("embed", c.d_model), c.norm_eps))
        self.mlp_residual = PostNorm(RMSNorm(("embed", c.d_model), c.norm_eps))


class PostGPT(RotaryDecoder):
    """Post-norm decoder with RMSNorm and RoPE, from tokens to logits."""

    def __init__(self, c: PostGPTConfig) -> None:
        super().__init__()
        self.config: PostGPTConfig = c
        self.embedding = Embedding(("vocab", c.vocab_size), c.d_model, tied=c.tied)
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.n_layers))
        self.read_out = LMHead(self.embedding, tied=c.tied, soft_cap=c.soft_cap)
