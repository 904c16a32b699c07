"""What every decoder-only transformer shares: sizes, the pass through the blocks, loss and cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.kernels.documents import Documents
from zoo.models.inputs import check_documents, check_tokens, consecutive_tokens
from zoo.models.language_model import LanguageModel, LanguageModelConfig
from zoo.nn.attention_options import AttentionOptions
from zoo.nn.kv_cache import KVCache
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.loss import LossParts
from zoo.nn.norm import RMSNorm
from zoo.nn.positions import document_lengths, document_positions, positions
from zoo.nn.qk import AllHeadsNormThenRotary, NormThenRotary, NoTransform, RotaryThenScaledNorm
from zoo.nn.rope import Rope
from zoo.nn.scaling import ScalingConfig
from zoo.spec import Module, ScalePair
from zoo.utils.errors import DataError
from zoo.utils.untyped import Kwargs

NORM_AND_HEAD: ScalePair = ((("norm.scale", "entries"),), (("read_out.matrix.weight", "columns"),))
"""The norm between the last block and the head, and a head that is not the embedding."""


class DecoderConfig(LanguageModelConfig):
    """The sizes of a decoder-only transformer."""

    objectives: ClassVar[frozenset[str]] = frozenset({"causal"})

    vocab_size: int = Field(gt=0, description="number of tokens")
    d_model: int = Field(gt=0, description="width of the stream")
    n_layers: int = Field(gt=0, description="number of blocks")
    n_heads: int = Field(gt=0, description="number of query heads; divides d_model, unless d_head is given")
    n_kv_heads: int | None = Field(
        None, gt=0, description="key and value heads (grouped queries); null: n_heads"
    )
    d_head: int | None = Field(None, gt=0, description="entries per head; null: d_model / n_heads")
    d_mlp: int | None = Field(None, gt=0, description="inner width of the MLP; null: 4 d_model")
    tied: bool = Field(False, description="use the input embedding as the language model head")
    attention: AttentionOptions = Field(
        AttentionOptions(), description="window, QK-norm, QK-clip and gates of the attention"
    )
    soft_cap: float | None = Field(
        None, gt=0, description="c of logits <- c tanh(logits / c) behind the head; it hides diverging logits"
    )

    @model_validator(mode="after")
    def _sizes_divide(self) -> Self:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}")
        if self.n_heads % self.kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.kv_heads}")
        return self

    def attention_arguments(
        self,
        block: int,
        eps: float,
        each_head: bool = False,
        normalised: bool = False,
        norm: type[RMSNorm] = RMSNorm,
    ) -> Kwargs:
        """The arguments of `Attention` that follow from the field `attention`.

        Args:
            block: number of the block, from 0.
            eps: eps of the norms of queries and keys.
            each_head: whether another option asks for a norm of queries and keys per head.
            normalised: whether the output is normalised next.
            norm: class of the norms of queries and keys.
        """
        options, h = self.attention, self.head_size
        kind = "head" if each_head else options.qk_norm
        qk: dict[str | None, Callable[[], Module]] = {
            None: self.bare_qk,
            "head": lambda: NormThenRotary(h, eps, norm),
            "all_heads": lambda: AllHeadsNormThenRotary(self.n_heads, self.kv_heads, h, eps, norm),
            "unit": lambda: RotaryThenScaledNorm(self.kv_heads, h, self.d_model, ScalingConfig()),
        }
        return {
            "qk": qk[kind](),
            "scale": math.sqrt(h) if kind == "unit" else self.score_size**-0.5,
            "score_cap": options.score_cap,
            "qk_normalised": kind is not None,
            "output_normalised": normalised,
            "qk_rescaled": kind == "unit",
            "gate": options.gate,
            "qk_clip": options.qk_clip,
            "window": options.window_of(block),
        }

    def bare_qk(self) -> Module:
        """The transformation of queries and keys that are not normalised."""
        return NoTransform()

    @property
    def ties_embedding(self) -> bool:
        """Whether the head multiplies by the table of the input embedding."""
        return self.tied

    @property
    def head_size(self) -> int:
        """Entries per head, h."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def score_size(self) -> float:
        """Scores are divided by the root of this number."""
        return self.attention.score_size or self.head_size

    @property
    def mlp_size(self) -> int:
        """Inner width of the MLP."""
        return self.d_mlp or 4 * self.d_model

    @property
    def residual_branches(self) -> int:
        """2N: two branches in each of the N layers."""
        return 2 * self.n_layers


class Decoder(LanguageModel):
    """A decoder-only transformer.

    A subclass creates the submodules that are named here, and overrides `ropes` or `embed` where it has such
    a part.

    Attributes:
        config: the sizes.
        embedding: the token embedding.
        blocks: modules ``(h, rope, layer_cache, position) -> h``, where h is (batch, time, d) and
            `layer_cache` a `zoo.nn.kv_cache.LayerCache` or None. If the configuration's `reads_documents`
            is set, a fifth argument is a `zoo.kernels.documents.Documents`, None or left out, and with
            QK-clip a sixth is the mask of `hidden_states` or left out.
        norm: the norm between the last block and the head; None: there is none.
        read_out: the head. The attribute is not called `lm_head` because its name is part of the names of
            parameters, which stand in checkpoints and seed the initialisation.
    """

    writes = "continuation"
    supports_padding = True

    config: DecoderConfig
    embedding: Embedding
    blocks: nn.ModuleList
    read_out: LMHead

    def __init__(self) -> None:
        super().__init__()
        self.norm: nn.Module | None = None

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    @property
    def lm_head(self) -> LMHead:
        """The module that maps hidden states (..., d) to logits (..., vocab)."""
        return self.read_out

    def hidden_states(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Embed tokens, pass them through all blocks and normalise the result.

        Args:
            tokens: (batch, time) integers; with a cache, only those that it does not hold yet.
            segments: an argument without an effect, because a decoder does not distinguish segments.
            mask: (batch, time) bool, False for padding, which comes after the text; None: there is none.
                Tokens do not see the padding after their text; only QK-clip, and rotary frequencies that
                depend on the length of the text, need the mask.
            cache: keys and values of the tokens before, extended in place; None: there are none.
            documents: (batch, time) integers, the number of each token's document. Tokens see those of their
                own document only, and positions begin anew with every document; None: each row is one
                document.

        Returns:
            (batch, time, d).

        Raises:
            DataError: The tokens or the documents have another shape or dtype, the tokens are more than there
                are positions or than the cache has room for, or documents are given together with a cache or
                to a model that does not distinguish them.
        """
        check_tokens(tokens)
        time = tokens.shape[1]
        if cache:
            cache.check_room(time)
        position, padding = (cache.position, cache.padding) if cache else (0, None)
        if self.max_seq_len and isinstance(position, int) and position + time > self.max_seq_len:
            raise DataError(f"tokens: {position + time} of them, but there are {self.max_seq_len} positions")
        length: int | Tensor = cache.length if cache else time
        if padding is not None:
            length = length - padding[:, None]
        if documents is None:
            position_ids = positions(position, time, tokens.device, padding)
            if mask is not None and cache is None and self.rotates_by_length:
                length = mask.sum(1, keepdim=True)
        else:
            check_documents(documents, tokens)
            if cache is not None or not self.config.reads_documents:
                reason = "without a cache" if cache is not None else "of a model that distinguishes them"
                raise DataError(f"documents: {self.config.type}: expected them {reason}")
            position_ids, length = document_positions(documents), document_lengths(documents)
        ropes = self.ropes(position_ids, length)
        h = self.embed(tokens, position_ids)
        separated = None if documents is None else self._separated(documents, h.dtype)
        within: tuple[Documents | Tensor | None, ...] = () if separated is None else (separated,)
        if mask is not None and self._measures_logits:
            within = (separated, mask)
        for i, (block, rope) in enumerate(zip(self.blocks, ropes, strict=True)):
            h = block(h, rope, cache.layers[i] if cache else None, position, *within)
        if cache:
            cache.position += time
        return self.final_norm(h)

    @property
    def rotates_by_length(self) -> bool:
        """Whether rotary frequencies depend on the length of a text, as those of LongRoPE do."""
        return False

    @property
    def _measures_logits(self) -> bool:
        """Whether blocks take the mask, because their QK-clip measures logits in training."""
        return self.config.attention.qk_clip is not None and self.config.reads_documents

    def _separated(self, documents: Tensor, dtype: torch.dtype) -> Documents:
        c = self.config
        windows = {c.attention.window_of(i) for i in range(c.n_layers)}
        return Documents.of(documents, c.head_size, dtype, windows)

    def ropes(self, position_ids: Tensor, length: int | Tensor | None = None) -> Sequence[Rope | None]:
        """The rotations of queries and keys for each block, in a model with rotary positions; otherwise None.

        Args:
            position_ids: positions of the tokens, int64 (time,) or (batch, time).
            length: number of tokens that a sequence may have, those in a cache and yet to come included,
                int64 (batch, 1) of each row, or (batch, time) of each token's document; None: the largest
                position plus 1.

        Returns:
            For each block the result of `zoo.nn.rope.rotation`: cosines (..., time, r / 2) and signed sines
            (..., time, 2, r / 2), where r is the number of entries of a head that are rotated and ... is
            nothing or the batch; None if the block does not rotate.
        """
        return [None] * self.config.n_layers

    def embed(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, (batch, time, d); `position_ids` as for `ropes`."""
        h: Tensor = self.embedding(tokens)
        return h

    def final_norm(self, h: Tensor) -> Tensor:
        """The stream (batch, time, d) after the norm between the last block and the head, if there is one."""
        normalised: Tensor = h if self.norm is None else self.norm(h)
        return normalised

    def remove_head(self) -> None:
        """Remove the head, which `hidden_states` does not use."""
        del self.read_out

    def forward(
        self,
        tokens: Tensor,
        cache: KVCache | None = None,
        last: bool = False,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Predict the next token at every position.

        Args:
            tokens: (batch, time) int64; with a cache, only those that it does not hold yet.
            cache: keys and values of the tokens before, made by `cache()` and extended in place.
            last: whether to predict at the last position only, which is all that generation needs.
            documents: (batch, time) integers, the number of each token's document, see `hidden_states`.

        Returns:
            Logits (batch, time, vocab), or (batch, 1, vocab).

        Raises:
            DataError: The inputs cannot be used, see `hidden_states`.
        """
        h = self.hidden_states(tokens, cache=cache, documents=documents)
        logits: Tensor = self.lm_head(h[:, -1:] if last else h)
        return logits

    def predict(self, *inputs: Tensor) -> Tensor:
        """Logits of tokens, or of tokens and the numbers of their documents."""
        tokens, documents = inputs if len(inputs) > 1 else (*inputs, None)
        logits: Tensor = self(tokens, documents=documents)
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss described in `Model`, computed in chunks; the targets are the tokens that follow.

        Args:
            *batch: (tokens, targets) or (tokens, documents, targets), see `hidden_states`.
            z_loss: coefficient of mean(log Z ^ 2); 0 adds nothing to the loss.
        """
        tokens, *documents, targets = batch
        mask = self.padding_mask(*batch) if self._measures_logits or self.rotates_by_length else None
        h = self.hidden_states(tokens, mask=mask, documents=documents[0] if documents else None)
        return self.lm_head.loss(h, targets, z_loss)

    def cache(
        self,
        batch: int,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        padding: Tensor | None = None,
        multiple_of: int = 1,
    ) -> KVCache:
        """An empty cache of keys and values, as described in `LanguageModel`."""
        c, dtype = self.config, dtype or next(self.parameters()).dtype
        shape = (batch, length, c.kv_heads, c.head_size)
        return KVCache(c.n_layers, shape, device, dtype, padding, multiple_of)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor]:
        """Tokens, all different where the vocabulary is large enough, and the tokens that follow."""
        return consecutive_tokens(self.config.vocab_size, batch, min(time, self.max_seq_len or time))
