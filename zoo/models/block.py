"""The blocks of decoders: attention and an MLP, each behind a residual connection."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from zoo.kernels.documents import Documents
from zoo.nn.attention import Attention
from zoo.nn.kv_cache import LayerCache
from zoo.nn.mlp import GELUMLP, Gated
from zoo.nn.positions import CachePosition
from zoo.nn.residual import norm_before
from zoo.nn.rope import Rope
from zoo.spec import Module, ScalePair


class ResidualBlock(Module):
    """h <- attention_residual(h, attention);  h <- mlp_residual(h, mlp). Subclasses create the four parts.

    Attributes:
        attention: causal attention.
        mlp: the feed-forward layer.
        attention_residual: how the output of the attention is added to the stream, see `zoo.nn.residual`.
        mlp_residual: the same for the MLP.
    """

    attention: Attention
    mlp: nn.Module
    attention_residual: nn.Module
    mlp_residual: nn.Module

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
        h = self.attention_residual(h, self.attention, rope, cache, position, documents, mask)
        h = self.mlp_residual(h, self.mlp)
        return h


class PreNormBlock(ResidualBlock):
    """A `ResidualBlock` whose residual connections have a norm in front of each branch."""

    mlp: GELUMLP | Gated

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """The scales of both norms and the matrices behind them."""
        return [
            norm_before("attention_residual", "attention", self.attention.reads),
            norm_before("mlp_residual", "mlp", self.mlp.reads),
        ]
