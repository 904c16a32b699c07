"""GPT-2: the decoder with learned positions (Radford et al. 2019).

h <- E_token + E_position;  h <- h + ATTN(LayerNorm(h));  h <- h + MLP(LayerNorm(h))
logits <- E_token LayerNorm(h)

Every map has a bias, GELU is approximated with tanh, and the head multiplies by the token table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.block import PreNormBlock
from zoo.models.decoder import NORM_AND_HEAD, Decoder, DecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.layernorm import LayerNorm
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import GELUMLP
from zoo.nn.residual import PreNorm
from zoo.spec import ScalePair, WidthPowers


@MODELS.register
class GPT2Config(DecoderConfig):
    """Pre-norm decoder with learned positions, LayerNorm, GELU and biases (GPT-2)."""

    default_init: ClassVar[str] = "gpt2"
    reads_documents: ClassVar[bool] = True
    type: Literal["gpt2"] = "gpt2"
    context: int = Field(1024, gt=0, description="number of positions that have a vector")
    tied: bool = Field(True, description="use the input embedding as the language model head")
    norm_eps: float = Field(1e-5, gt=0, description="added to the variance in LayerNorm")

    @property
    def max_seq_len(self) -> int:
        """The number of position vectors."""
        return self.context

    def build(self) -> GPT2:
        """The model, uninitialised."""
        return GPT2(self)


class Block(PreNormBlock):
    """Attention and MLP, each normalised before and added to the stream."""

    def __init__(self, c: GPT2Config, i: int) -> None:
        super().__init__()
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            residual_branches=c.residual_branches,
            head_size=c.head_size,
            **c.attention_arguments(i, c.norm_eps),
            bias=True,
        )
        self.mlp = GELUMLP(c.d_model, c.mlp_size, c.residual_branches, bias=True, approximate="tanh")
        self.attention_residual = PreNorm(c.d_model, c.norm_eps, norm=LayerNorm)
        self.mlp_residual = PreNorm(c.d_model, c.norm_eps, norm=LayerNorm)


class GPT2(Decoder):
    """GPT-2's decoder, from tokens to logits."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.config: GPT2Config = c
        # A tied table has the range of the head, and the position vectors added to it match. A scheme that
        # scales the vectors of both gives both a standard deviation of 1.
        std = c.d_model**-0.5 if c.tied else 1.0
        self.embedding = Embedding(("vocab", c.vocab_size), c.d_model, tied=c.tied)
        powers = WidthPowers(output_std=-0.5 if c.tied else 0.0)
        positions = ("positions", c.context)
        self.position = Embedding(positions, c.d_model, output_std=std, lookup_std=1.0, powers=powers)
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.n_layers))
        self.norm = LayerNorm(("embed", c.d_model), c.norm_eps)
        self.read_out = LMHead(self.embedding, tied=c.tied, soft_cap=c.soft_cap)

    def embed(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """E_token + E_position, (batch, time, d)."""
        h: Tensor = self.embedding(tokens) + self.position(position_ids)
        return h

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The last norm and a head of its own."""
        return [] if self.config.tied else [NORM_AND_HEAD]
