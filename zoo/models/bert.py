"""BERT: the bidirectional encoder, with absolute, rotary or relative positions.

    h <- LayerNorm(E_token + E_segment [+ E_position])
    h <- LayerNorm(h + ATTN(h));  h <- LayerNorm(h + MLP(h))
    logits <- E_token LayerNorm(GELU(W h + b)) + b_out

Post-norm, biases in every map, and a head that multiplies by the token table (Devlin et al. 2019). With
rotary positions it is the Amos paper's RoPE, with relative ones its RPE; Shaw's form of relative positions
has its own name.
"""

from __future__ import annotations

import functools
import logging
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import MODELS, Config
from zoo.models.encoder import Encoder, EncoderConfig
from zoo.models.inputs import key_mask
from zoo.nn.biased import BiasedAttention
from zoo.nn.classification import ClassificationHead
from zoo.nn.layernorm import LayerNorm
from zoo.nn.linear import Embedding
from zoo.nn.mlm_head import MLMHead
from zoo.nn.mlp import GELU_FORMS, GELUMLP
from zoo.nn.positions import positions
from zoo.nn.qk import NoTransform, Rotary
from zoo.nn.relative import RelativeAttention, ShawAttention
from zoo.nn.residual import PostNorm
from zoo.nn.rope import Rope, rotation
from zoo.spec import Module, WidthPowers
from zoo.utils.untyped import Json, Kwargs

log = logging.getLogger("zoo")


class AbsolutePositions(Config):
    """A learned vector for each position, added to the token's (BERT)."""

    assumed: ClassVar[bool] = True
    type: Literal["absolute"] = "absolute"
    length: int = Field(512, gt=0, description="number of positions that have a vector")
    offset: int = Field(
        0,
        ge=0,
        description="rows of the table in front of the first position, which are not used (RoBERTa: 2)",
    )


class RotaryPositions(Config):
    """RoPE on queries and keys (Su et al. 2021)."""

    type: Literal["rope"] = "rope"
    base: float = Field(10000.0, gt=0, description="base of the rotary frequencies")


class RelativePositions(Config):
    """A learned vector for each distance, input to the key and value maps of every layer (Amos, A.4.1)."""

    type: Literal["relative"] = "relative"
    length: int = Field(
        128,
        gt=1,
        description="R: distances from R - 1 on are the same, so a table has 2 R - 1 rows",
    )
    biases: Literal["twice", "once"] = Field(
        "twice",
        description="twice: the maps' biases count for the table as well (released code); once: x_j + e_ij "
        "goes through one map (the paper's text)",
    )


class ShawPositions(Config):
    """A learned vector for each distance, added to keys and values in every layer (Shaw et al. 2018)."""

    type: Literal["shaw"] = "shaw"
    distance: int = Field(16, gt=0, description="distances from this one on share a vector")


Positions = Annotated[
    AbsolutePositions | RotaryPositions | RelativePositions | ShawPositions, Field(discriminator="type")
]


@MODELS.register
class BERTConfig(EncoderConfig):
    """Post-norm encoder with a masked language model's head; absolute, rotary or relative positions."""

    type: Literal["bert"] = "bert"
    vocab_size: int = Field(gt=0, description="number of tokens, the mask among them")
    d_model: int = Field(gt=0, description="width of the stream")
    n_layers: int = Field(gt=0, description="number of blocks")
    n_heads: int = Field(gt=0, description="number of heads; divides d_model")
    d_mlp: int | None = Field(None, gt=0, description="inner width of the MLP; null: 4 d_model")
    position: Positions = Field(AbsolutePositions(), description="how positions enter the model")
    n_segments: int = Field(2, gt=0, description="number of segments (token types)")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout of embeddings and of the outputs of branches"
    )
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of attention probabilities")
    gelu: Literal["exact", "tanh"] = Field(
        "exact", description="tanh: the approximation of the released RPE and GPT-2"
    )
    norm_eps: float = Field(1e-12, gt=0, description="added to the variance in LayerNorm")
    zero_start: bool = Field(
        False,
        description="the matrices of queries and values, the second of the MLP, and those of the heads start "
        "at 0, as in the Amos paper's released RPE",
    )

    @model_validator(mode="before")
    @classmethod
    def _shaw_was_called_relative(cls, given: Json) -> Json:
        """Until 0.2 `relative` meant Shaw's form, whose field `distance` tells it apart."""
        position = given.get("position") if isinstance(given, dict) else None
        if isinstance(position, dict) and position.get("type") == "relative" and "distance" in position:
            log.warning(
                "model.position: 'relative' with a distance is now called 'shaw'; 'relative' is the paper's"
            )
            return {**given, "position": {**position, "type": "shaw"}}
        return given

    @property
    def rotates(self) -> bool:
        """Whether RoPE encodes positions."""
        return isinstance(self.position, RotaryPositions)

    @property
    def mlp_size(self) -> int:
        """Inner width of the MLP."""
        return self.d_mlp or 4 * self.d_model

    @property
    def start(self) -> float | None:
        """The constant that the matrices of `zero_start` start from; None: random numbers."""
        return 0.0 if self.zero_start else None

    @property
    def max_seq_len(self) -> int | None:
        """The number of position vectors, if positions are absolute; otherwise any number of tokens fits."""
        return self.position.length if isinstance(self.position, AbsolutePositions) else None

    @property
    def segment_types(self) -> int:
        """Number of segments, each of which has a vector."""
        return self.n_segments

    def classification_head(self, classes: int, bias: bool = True) -> Module:
        """A head that turns pooled hidden states (n, d) into logits (n, classes), uninitialised."""
        return ClassificationHead(classes, self.d_model, self.start, bias)

    def build(self) -> BERT:
        """The model, uninitialised."""
        return BERT(self)


class BERT(Encoder):
    """Tokens, some of them masked -> logits of the original tokens."""

    def __init__(self, c: BERTConfig) -> None:
        super().__init__()
        self.config: BERTConfig = c
        self.embedding = Embeddings(c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.head = MLMHead(self.embedding.token, c.norm_eps, approximate=GELU_FORMS[c.gelu], start=c.start)

    def hidden_states(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Embed the tokens and pass them through all blocks, as described in `LanguageModel`."""
        self.check_inputs(tokens, segments, mask)
        rope = self.rope(tokens)
        h: Tensor = self.embedding(tokens, segments)
        for block in self.blocks:
            h = block(h, rope, key_mask(mask))
        return h

    def rope(self, tokens: Tensor) -> Rope | None:
        """The rotations of the positions, (time, h / 2); None without RoPE."""
        c = self.config
        if not isinstance(c.position, RotaryPositions):
            return None
        position_ids = positions(0, tokens.shape[1], tokens.device)
        return rotation(position_ids, c.head_size, c.position.base)


class Embeddings(Module):
    """LayerNorm(E_token + E_segment [+ E_position]).

    Because the sum is normalised, its scale is free: the token table has the scale of a head, and the other
    tables match it (Amos, A.4.1).
    """

    def __init__(self, c: BERTConfig) -> None:
        super().__init__()
        self.token = Embedding(("vocab", c.vocab_size), c.d_model, tied=True, normalised=True)
        table = functools.partial(
            Embedding,
            width=c.d_model,
            output_std=c.d_model**-0.5,
            normalised=True,
            powers=WidthPowers(output_std=-0.5),
        )
        self.segment = table(("segments", c.n_segments))
        self.position: Embedding | None = None
        if isinstance(c.position, AbsolutePositions):
            self.offset = c.position.offset
            rows = ("positions", c.position.length + c.position.offset)
            self.position = table(rows)
        self.norm = LayerNorm(("embed", c.d_model), c.norm_eps)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        """(batch, time) int64 each, or no segments -> (batch, time, d)."""
        total = self.token(tokens) + self.segment(torch.zeros_like(tokens) if segments is None else segments)
        if self.position is not None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device) + self.offset
            total = total + self.position(position_ids)
        h: Tensor = self.dropout(self.norm(total))
        return h


class Block(Module):
    """Attention and MLP, each added to the stream, which is then normalised."""

    def __init__(self, c: BERTConfig) -> None:
        super().__init__()
        self.attention = attention(c)
        self.mlp = GELUMLP(
            c.d_model,
            c.mlp_size,
            c.residual_branches,
            bias=True,
            approximate=GELU_FORMS[c.gelu],
            down_start=c.start,
        )
        self.attention_residual = PostNorm(LayerNorm(("embed", c.d_model), c.norm_eps), c.dropout)
        self.mlp_residual = PostNorm(LayerNorm(("embed", c.d_model), c.norm_eps), c.dropout)

    def forward(self, h: Tensor, rope: Rope | None, seen: Tensor | None) -> Tensor:
        """(batch, time, d) -> the same; `seen` (batch, 1, 1, time) bool hides padding, if there is any."""
        h = self.attention_residual(h, self.attention, rope, seen)
        h = self.mlp_residual(h, self.mlp)
        return h


def attention(c: BERTConfig) -> BiasedAttention:
    """Attention with the positions of the config; absolute positions are part of the embedding instead."""
    sizes = (c.d_model, c.n_heads, c.n_heads)
    parts: Kwargs = {
        "qk": Rotary() if c.rotates else NoTransform(),
        "scale": c.head_size**-0.5,
        "residual_branches": c.residual_branches,
        "bias": True,
        "dropout": c.attention_dropout,
        "qv_start": c.start,
    }
    if isinstance(c.position, RelativePositions):
        distance, twice = c.position.length - 1, c.position.biases == "twice"
        return RelativeAttention(*sizes, distance=distance, biases_twice=twice, **parts)
    if isinstance(c.position, ShawPositions):
        return ShawAttention(*sizes, distance=c.position.distance, **parts)
    return BiasedAttention(*sizes, **parts)
