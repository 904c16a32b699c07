"""What every encoder-decoder shares: the sizes, the loss, the caches of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.models.base import LMHead, Model, ModelConfig, check_tokens
from zoo.nn.attention import KVCache
from zoo.nn.cross_attention import SourceCache
from zoo.nn.linear import Embedding
from zoo.nn.loss import LossParts
from zoo.utils.errors import DataError


class EncoderDecoderConfig(ModelConfig):
    """The sizes of an encoder-decoder transformer."""

    objectives: ClassVar[frozenset[str]] = frozenset({"span-corruption"})
    tied: ClassVar[bool] = False

    vocab_size: int = Field(gt=0, description="number of tokens, sentinels among them")
    d_model: int = Field(gt=0, description="width of the streams")
    n_layers: int = Field(gt=0, description="number of the encoder's blocks")
    n_decoder_layers: int | None = Field(None, gt=0, description="of the decoder's; null: n_layers")
    n_heads: int = Field(gt=0, description="number of heads")
    d_head: int | None = Field(None, gt=0, description="entries per head; null: d_model / n_heads")
    d_mlp: int | None = Field(None, gt=0, description="inner width of the MLP; null: 4 d_model")

    @model_validator(mode="after")
    def _heads_have_a_size(self) -> Self:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}; give d_head"
            )
        return self

    @property
    def head_size(self) -> int:
        """Entries per head, h."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def mlp_size(self) -> int:
        """Inner width of the MLP."""
        return self.d_mlp or 4 * self.d_model

    @property
    def decoder_layers(self) -> int:
        """Number of the decoder's blocks."""
        return self.n_decoder_layers or self.n_layers

    @property
    def encoder_branches(self) -> int:
        """Residual branches of the encoder: attention and MLP in each block."""
        return 2 * self.n_layers

    @property
    def decoder_branches(self) -> int:
        """Residual branches of the decoder: two attentions and an MLP in each block."""
        return 3 * self.decoder_layers


class DecoderCache(KVCache):
    """Keys and values of the target so far and of the source, for every block of a decoder.

    Attributes:
        sources: one `SourceCache` per block.
    """

    def __init__(self, n_layers: int, shape: tuple[int, int, int, int], device: torch.device) -> None:
        """Allocate for targets of `shape` = (batch, capacity, heads, head size)."""
        super().__init__(n_layers, shape, device)
        self.sources = [SourceCache() for _ in range(n_layers)]


class EncoderDecoder(Model):
    """A model that reads a source and writes a target; a subclass adds the two stacks."""

    config: EncoderDecoderConfig
    embedding: Embedding
    encoder_blocks: nn.ModuleList
    decoder_blocks: nn.ModuleList
    read_out: LMHead

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The blocks of both stacks, or of the encoder if there is nothing else."""
        return [*self.encoder_blocks, *getattr(self, "decoder_blocks", ())]

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read a source.

        Args:
            source: (batch, source) int64.
            mask: (batch, source) bool, False where there is padding; None: nowhere.

        Returns:
            What the decoder attends to, (batch, source, d).
        """
        raise NotImplementedError

    def decode(
        self, prefix: Tensor, memory: Tensor, mask: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """Go on with a target.

        Args:
            prefix: (batch, time) int64, the target from its start token on; with a cache, only what it
                does not hold yet.
            memory: (batch, source, d), from `encode`.
            mask: (batch, source) bool, as for `encode`.
            cache: from `cache()`, of this source; extended in place.

        Returns:
            What the read-out is applied to, (batch, time, d).
        """
        raise NotImplementedError

    def states(self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """What `zoo.models.base.Trunk` describes: the encoder's."""
        return self.encode(tokens, mask)

    def remove_head(self) -> None:
        """Remove the decoder."""
        del self.decoder_blocks, self.read_out

    def forward(self, source: Tensor, prefix: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predict at every position of a target the token that follows.

        Args:
            source: (batch, source) int64.
            prefix: (batch, time) int64, the target shifted right, a start token first.
            mask: (batch, source) bool, False where the source is padded; None: nowhere.

        Returns:
            Logits (batch, time, vocab).

        Raises:
            DataError: source, prefix or `mask` of another shape or dtype.
        """
        logits: Tensor = self.read_out(self.decode(prefix, self.encode(source, mask), mask))
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss that `Model` describes, computed in chunks, of (source, prefix, targets)."""
        source, prefix, targets = batch
        return self.read_out.loss(self.decode(prefix, self.encode(source)), targets, z_loss)

    def cache(self, batch: int, length: int, device: torch.device) -> DecoderCache:
        """An empty cache for `batch` targets of up to `length` tokens."""
        c = self.config
        return DecoderCache(c.decoder_layers, (batch, length, c.n_heads, c.head_size), device)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor, Tensor]:
        """Sources of `time` tokens and targets of a quarter, about what span corruption makes of a text."""
        target = -(-time // 4)
        count = torch.arange(batch * (time + target + 1), device="cpu") % self.config.vocab_size
        source, whole = torch.split(count.reshape(batch, -1), [time, target + 1], 1)
        return source, whole[:, :-1], whole[:, 1:]


def of_keys(mask: Tensor | None) -> Tensor | None:
    """(batch, source) -> (batch, 1, 1, source), the same for all heads and queries."""
    return None if mask is None else mask[:, None, None]


def check_source(source: Tensor, mask: Tensor | None) -> None:
    """Refuse a source that is not (batch, source) token ids, and a mask that does not fit it."""
    check_tokens(source, None)
    if mask is not None and (mask.shape != source.shape or mask.dtype != torch.bool):
        raise DataError(
            f"mask: expected bool {tuple(source.shape)} like the source, got {mask.dtype} {tuple(mask.shape)}"
        )
