"""GPT-NeoX: the decoder with LayerNorm, biases and partly rotated heads (Black et al., arXiv 2204.06745).

    h <- h + ATTN(LayerNorm_1(h)) + MLP(LayerNorm_2(h));  logits <- E_out LayerNorm(h)

Both branches read the same stream, which is the parallel residual of section 2.1; without `parallel` the MLP
reads the stream that attention has been added to. Every map but the head has a bias. Pythia has this
architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.kernels.documents import Documents
from zoo.models.block import PreNormBlock
from zoo.models.decoder import NORM_AND_HEAD
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.kv_cache import LayerCache
from zoo.nn.layernorm import LayerNorm
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import GELU_FORMS, GELUMLP
from zoo.nn.positions import CachePosition
from zoo.nn.residual import PreNorm
from zoo.nn.rope import Rope
from zoo.spec import ScalePair


@MODELS.register
class NeoXConfig(RotaryDecoderConfig):
    """Pre-norm decoder with parallel branches, LayerNorm, RoPE, GELU and biases (GPT-NeoX, Pythia)."""

    default_init: ClassVar[str] = "gpt2"
    reads_documents: ClassVar[bool] = True
    type: Literal["neox"] = "neox"
    rope_fraction: float = Field(
        0.25, gt=0, le=1, description="part of the entries of a head that is rotated, rounded down"
    )
    parallel: bool = Field(
        True, description="both branches read the same stream, and their outputs are added"
    )
    gelu: Literal["exact", "tanh"] = Field("exact", description="tanh: the approximation of GPT-2")
    norm_eps: float = Field(1e-5, gt=0, description="added to the variance in LayerNorm")

    def build(self) -> NeoX:
        """The model, uninitialised."""
        return NeoX(self)


class Block(PreNormBlock):
    """Attention and MLP, each normalised before, added to the stream together or one after the other."""

    attention_residual: PreNorm
    mlp_residual: PreNorm

    def __init__(self, c: NeoXConfig, i: int) -> None:
        super().__init__()
        self.parallel = c.parallel
        self.attention = Attention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            residual_branches=c.residual_branches,
            head_size=c.head_size,
            **c.attention_arguments(i, c.norm_eps),
            bias=True,
        )
        form = GELU_FORMS[c.gelu]
        self.mlp = GELUMLP(c.d_model, c.mlp_size, c.residual_branches, bias=True, approximate=form)
        self.attention_residual = PreNorm(c.d_model, c.norm_eps, norm=LayerNorm)
        self.mlp_residual = PreNorm(c.d_model, c.norm_eps, norm=LayerNorm)

    def forward(
        self,
        h: Tensor,
        rope: Rope | None,
        cache: LayerCache | None = None,
        position: CachePosition = 0,
        documents: Documents | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(batch, time, d) -> the same."""
        if not self.parallel:
            return super().forward(h, rope, cache, position, documents, mask)
        known = rope, cache, position, documents, mask
        attended = self.attention_residual.added(h, self.attention, *known)
        return h + attended + self.mlp_residual.added(h, self.mlp)


class NeoX(RotaryDecoder):
    """GPT-NeoX's decoder with parallel branches, from tokens to logits."""

    def __init__(self, c: NeoXConfig) -> None:
        super().__init__()
        self.config: NeoXConfig = c
        self.embedding = Embedding(("vocab", c.vocab_size), c.d_model, tied=c.tied)
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.n_layers))
        self.norm = LayerNorm(("embed", c.d_model), c.norm_eps)
        self.read_out = LMHead(self.embedding, tied=c.tied, soft_cap=c.soft_cap)

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The last norm and a head of its own."""
        return [] if self.config.tied else [NORM_AND_HEAD]
