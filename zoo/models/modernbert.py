"""ModernBERT: the encoder with RoPE, local attention and gated MLPs (Warner et al., arXiv 2412.13663).

    h <- LayerNorm(E_token)
    h <- h + ATTN(LayerNorm(h));  h <- h + MLP(LayerNorm(h))
    logits <- E_token LayerNorm(GELU(W LayerNorm(h))) + b_out

There are no biases but that of the output (section 2.1.1), and no norm in front of the attention of the first
block, because the embedding is normalised. Every third block attends to all tokens and the others to those
within 64 positions, with another base of RoPE (section 2.1.2). The MLP is a gated GELU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.encoder import Encoder, EncoderConfig
from zoo.models.inputs import key_mask
from zoo.nn.biased import BiasedAttention
from zoo.nn.layernorm import LayerNorm
from zoo.nn.linear import Embedding
from zoo.nn.mlm_head import HeadTransform, MLMHead
from zoo.nn.mlp import GatedGELU
from zoo.nn.positions import LONGEST, positions
from zoo.nn.qk import Rotary
from zoo.nn.residual import PreNorm, Unnormed, norm_before
from zoo.nn.rope import Rope, rotation
from zoo.spec import Module, ScalePair

UnbiasedNorm = partial(LayerNorm, bias=False)


@MODELS.register
class ModernBERTConfig(EncoderConfig):
    """Pre-norm encoder with RoPE, global and local attention, gated GELU, without biases."""

    type: Literal["modernbert"] = "modernbert"
    vocab_size: int = Field(gt=0, description="number of tokens, the mask among them")
    d_model: int = Field(gt=0, description="width of the stream")
    n_layers: int = Field(gt=0, description="number of blocks")
    n_heads: int = Field(gt=0, description="number of heads; divides d_model")
    d_mlp: int | None = Field(None, gt=0, description="inner width of the MLP; null: 3/2 d_model")
    global_blocks: Annotated[tuple[bool, ...], Field(min_length=1)] = Field(
        (True, False, False),
        description="whether a block attends to all tokens: one entry per block, repeated if there are "
        "more blocks",
    )
    reach: int = Field(
        64,
        ge=0,
        le=LONGEST,
        description="largest distance between a query and a key in the other blocks: half of the window",
    )
    rope_base: float = Field(160000.0, gt=0, description="base of the rotary frequencies in global blocks")
    rope_local_base: float = Field(10000.0, gt=0, description="base of the rotary frequencies in the others")
    embedding_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the normalised embedding")
    attention_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout of attention probabilities and of the outputs of attention"
    )
    mlp_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the inner activations of the MLP")
    norm_eps: float = Field(1e-5, gt=0, description="added to the variance in LayerNorm")

    @property
    def rotates(self) -> bool:
        """True: RoPE encodes positions."""
        return True

    @property
    def mlp_size(self) -> int:
        """Inner width of the MLP."""
        return self.d_mlp or 3 * self.d_model // 2

    def is_global(self, block: int) -> bool:
        """Whether a block, counted from 0, attends to all tokens."""
        return self.global_blocks[block % len(self.global_blocks)]

    def pooling_layer(self) -> Module:
        """LayerNorm(GELU(W h)), as in front of the head of the masked language model."""
        return HeadTransform(self.d_model, self.norm_eps, bias=False)

    def build(self) -> ModernBERT:
        """The model, uninitialised."""
        return ModernBERT(self)


class ModernBERT(Encoder):
    """Tokens, some of them masked -> logits of the original tokens."""

    def __init__(self, c: ModernBERTConfig) -> None:
        super().__init__()
        self.config: ModernBERTConfig = c
        self.embedding = Embeddings(c)
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.n_layers))
        self.norm = UnbiasedNorm(("embed", c.d_model), c.norm_eps)
        self.head = MLMHead(self.embedding.token, c.norm_eps, bias=False)

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The last norm and the matrix of the head."""
        return [((("norm.scale", "entries"),), (("head.transform.weight", "columns"),))]

    def hidden_states(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Embed the tokens, pass them through all blocks and normalise, as described in `LanguageModel`.

        Segments have no effect, because the model does not distinguish them.
        """
        self.check_inputs(tokens, segments, mask)
        c = self.config
        position_ids = positions(0, tokens.shape[1], tokens.device)
        global_inputs = rotation(position_ids, c.head_size, c.rope_base), key_mask(mask)
        local = local_mask(position_ids, c.reach, mask)
        local_inputs = rotation(position_ids, c.head_size, c.rope_local_base), local
        h: Tensor = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            h = block(h, *(global_inputs if c.is_global(i) else local_inputs))
        h = self.norm(h)
        return h


def local_mask(position_ids: Tensor, reach: int, mask: Tensor | None) -> Tensor:
    """Which keys the queries of a local block see.

    Args:
        position_ids: positions (time,) int64.
        reach: how far from its own position a query sees.
        mask: (batch, time) bool, False for padding; None: there is no padding.

    Returns:
        (1 or batch, 1, time, time) bool. Padding sees itself, because a softmax over no scores is NaN.
    """
    distance = (position_ids - position_ids[:, None]).abs()
    seen = (distance <= reach)[None]
    if mask is not None:
        seen = seen & (mask[:, None] | (distance == 0))
    return seen[:, None]


class Embeddings(Module):
    """LayerNorm(E_token); as in BERT the table has the scale of a head."""

    def __init__(self, c: ModernBERTConfig) -> None:
        super().__init__()
        self.token = Embedding(("vocab", c.vocab_size), c.d_model, tied=True, normalised=True)
        self.norm = UnbiasedNorm(("embed", c.d_model), c.norm_eps)
        self.dropout = nn.Dropout(c.embedding_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) int64 -> (batch, time, d)."""
        h: Tensor = self.dropout(self.norm(self.token(tokens)))
        return h


class Block(Module):
    """Attention and MLP, each normalised before and added to the stream."""

    def __init__(self, c: ModernBERTConfig, i: int) -> None:
        super().__init__()
        self.attention = BiasedAttention(
            c.d_model,
            c.n_heads,
            c.n_heads,
            qk=Rotary(),
            scale=c.head_size**-0.5,
            residual_branches=c.residual_branches,
            dropout=c.attention_dropout,
        )
        self.mlp = GatedGELU(c.d_model, c.mlp_size, c.residual_branches, c.mlp_dropout, approximate="none")
        self.normalises = i > 0
        self.attention_residual = (
            PreNorm(c.d_model, c.norm_eps, c.attention_dropout, UnbiasedNorm)
            if self.normalises
            else Unnormed(c.attention_dropout)
        )
        self.mlp_residual = PreNorm(c.d_model, c.norm_eps, norm=UnbiasedNorm)

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The norms and the matrices behind them."""
        attention = norm_before("attention_residual", "attention", self.attention.reads)
        mlp = norm_before("mlp_residual", "mlp", self.mlp.reads)
        return [attention, mlp] if self.normalises else [mlp]

    def forward(self, h: Tensor, rope: Rope, seen: Tensor | None) -> Tensor:
        """(batch, time, d) -> the same; `seen` as the bias of `BiasedAttention`."""
        h = self.attention_residual(h, self.attention, rope, seen)
        h = self.mlp_residual(h, self.mlp)
        return h
