"""The common part of all encoder-decoders: the sizes, the loss, the caches of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.models.inputs import check_tokens
from zoo.models.language_model import Generation, LanguageModel, LanguageModelConfig
from zoo.nn.cross_attention import SourceCache
from zoo.nn.kv_cache import KVCache
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.loss import LossParts
from zoo.nn.positions import CachePosition
from zoo.utils.errors import ZooError


class EncoderDecoderConfig(LanguageModelConfig):
    """The sizes of an encoder-decoder transformer."""

    objectives: ClassVar[frozenset[str]] = frozenset({"span-corruption"})
    bidirectional: ClassVar[bool] = True
    has_decoder: ClassVar[bool] = True

    vocab_size: int = Field(gt=0, description="number of tokens, sentinels among them")
    d_model: int = Field(gt=0, description="width of the streams")
    n_layers: int = Field(gt=0, description="number of the encoder's blocks")
    n_decoder_layers: int | None = Field(
        None, gt=0, description="number of the decoder's blocks; null: n_layers"
    )
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

    def __init__(
        self,
        n_layers: int,
        shape: tuple[int, int, int, int],
        device: torch.device | str | None,
        dtype: torch.dtype,
        multiple_of: int = 1,
    ) -> None:
        """Allocate for targets of `shape` = (batch, length, heads, head size), with the length rounded up."""
        super().__init__(n_layers, shape, device, dtype, multiple_of=multiple_of)
        self.sources = [SourceCache() for _ in range(n_layers)]


class EncoderDecoder(LanguageModel):
    """A model that reads a source and writes a target; a subclass adds the two stacks.

    Attributes:
        config: the sizes.
        embedding: the token embedding of source and target.
        encoder_blocks: the blocks of the encoder.
        decoder_blocks: the blocks of the decoder.
        read_out: the head, see `zoo.models.decoder.Decoder`.
    """

    writes = "answer"

    config: EncoderDecoderConfig
    embedding: Embedding
    encoder_blocks: nn.ModuleList
    decoder_blocks: nn.ModuleList
    read_out: LMHead

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The blocks of both stacks, or those of the encoder once the decoder is removed."""
        return [*self.encoder_blocks, *getattr(self, "decoder_blocks", ())]

    @property
    def depth(self) -> int:
        """The number of blocks of the encoder, with which the decoder grows."""
        return len(self.encoder_blocks)

    @property
    def lm_head(self) -> LMHead:
        """The module that maps the decoder's hidden states (..., d) to logits (..., vocab)."""
        return self.read_out

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read a source.

        Args:
            source: (batch, source) int64.
            mask: (batch, source) bool, False where there is padding; None: there is no padding.

        Returns:
            The encoder's hidden states, to which the decoder attends: (batch, source, d).
        """
        raise NotImplementedError

    def decode(
        self, prefix: Tensor, memory: Tensor, mask: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """Read a target, or the part of it that exists so far.

        Args:
            prefix: (batch, time) int64, the target from its start token on; with a cache, only the tokens
                that it does not hold yet.
            memory: (batch, source, d), from `encode`.
            mask: (batch, source) bool, as for `encode`.
            cache: keys and values of the tokens before, made by `cache()` and extended in place; always used
                with the same source.

        Returns:
            The decoder's hidden states, (batch, time, d).
        """
        raise NotImplementedError

    def hidden_states(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The encoder's hidden states; `segments` has no effect, and the rest is as in `LanguageModel`."""
        return self.encode(tokens, mask)

    def target_states(self, tokens: Tensor, mask: Tensor | None, start_id: int) -> Tensor:
        """The decoder's hidden states, as described in `LanguageModel`."""
        prefix = torch.cat([torch.full_like(tokens[:, :1], start_id), tokens[:, :-1]], 1)
        return self.decode(prefix, self.encode(tokens, mask), mask)

    def remove_head(self) -> None:
        """Remove the decoder and the head, which `hidden_states` does not use."""
        self.remove_read_out()
        del self.decoder_blocks

    def remove_read_out(self) -> None:
        """Remove the head."""
        del self.read_out

    def forward(self, source: Tensor, prefix: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predict the token that follows at every position of a target.

        Args:
            source: (batch, source) int64.
            prefix: (batch, time) int64, the target shifted right, a start token first.
            mask: (batch, source) bool, False where the source is padded; None: there is no padding.

        Returns:
            Logits (batch, time, vocab).

        Raises:
            DataError: The source, the prefix or `mask` has another shape or dtype.
        """
        logits: Tensor = self.lm_head(self.decode(prefix, self.encode(source, mask), mask))
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss described in `Model`, of a batch (source, prefix, targets), computed in chunks."""
        source, prefix, targets = batch
        return self.lm_head.loss(self.decode(prefix, self.encode(source)), targets, z_loss)

    def cache(
        self,
        batch: int,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        padding: Tensor | None = None,
        multiple_of: int = 1,
    ) -> DecoderCache:
        """An empty cache for `batch` targets of up to `length` tokens; padding of a target has no effect."""
        c, dtype = self.config, dtype or next(self.parameters()).dtype
        shape = (batch, length, c.n_heads, c.head_size)
        return DecoderCache(c.decoder_layers, shape, device, dtype, multiple_of)

    def start_generation(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        mask: Tensor | None = None,
        start_id: int | None = None,
        multiple_of: int = 1,
    ) -> Generation:
        """Encode prompts and prepare to write a target for each, as described in `LanguageModel`."""
        if start_id is None:
            raise ZooError("generate: start_id is missing; the targets of an encoder-decoder start with it")
        memory = self.encode(prompt, mask)
        length = self.check_length(max_new_tokens)
        cache = self.cache(len(prompt), length, prompt.device, multiple_of=multiple_of)

        def read(tokens: Tensor) -> Tensor:
            logits: Tensor = self.lm_head(self.decode(tokens, memory, mask, cache)[:, -1])
            return logits

        return Generation(prompt.new_full((len(prompt), 1), start_id), None, cache, read)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor, Tensor]:
        """Sources of `time` tokens and targets of a quarter of that length, as span corruption makes them."""
        target = -(-time // 4)
        count = torch.arange(batch * (time + target + 1), device="cpu") % self.config.vocab_size
        source, whole = torch.split(count.reshape(batch, -1), [time, target + 1], 1)
        return source, whole[:, :-1], whole[:, 1:]


def check_prefix(prefix: Tensor, cache: DecoderCache | None) -> CachePosition:
    """Check the tokens of a target, and return how many tokens are before them.

    Raises:
        DataError: The tokens have another shape or dtype, or are more than the cache has room for.
    """
    check_tokens(prefix)
    if cache is None:
        return 0
    cache.check_room(prefix.shape[1])
    return cache.position
