"""The common part of all bidirectional encoders with the head of a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from zoo.models.inputs import check_mask, check_tokens, mask_in
from zoo.models.language_model import LanguageModel, LanguageModelConfig
from zoo.nn.loss import IGNORE_INDEX, LossParts
from zoo.nn.mlm_head import MLMHead
from zoo.utils.errors import DataError


class EncoderConfig(LanguageModelConfig):
    """Properties of an encoder that follow from its sizes."""

    default_init: ClassVar[str] = "bert"
    objectives: ClassVar[frozenset[str]] = frozenset({"mlm"})
    bidirectional: ClassVar[bool] = True

    if TYPE_CHECKING:  # Subclasses declare them as fields; fields of a base class would come first in files.

        @property
        def n_layers(self) -> int:
            """Number of blocks."""

        @property
        def n_heads(self) -> int:
            """Number of heads."""

    @model_validator(mode="after")
    def _sizes_divide(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}")
        if self.head_size % 2 and self.rotates:
            raise ValueError(f"d_model / n_heads = {self.head_size} is odd, but RoPE rotates pairs")
        return self

    @property
    def rotates(self) -> bool:
        """Whether RoPE encodes positions."""
        return False

    @property
    def head_size(self) -> int:
        """Entries per head, h."""
        return self.d_model // self.n_heads

    @property
    def residual_branches(self) -> int:
        """2N: two branches in each of the N layers."""
        return 2 * self.n_layers

    @property
    def ties_embedding(self) -> bool:
        """True: the head multiplies by the token table."""
        return True


class Encoder(LanguageModel):
    """Tokens, some of them masked -> logits of the original tokens; a subclass adds `hidden_states`.

    Attributes:
        config: the sizes.
        blocks: the blocks.
        head: the head, which shares the table of the token embedding.
    """

    config: EncoderConfig
    blocks: nn.ModuleList
    head: MLMHead

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    @property
    def lm_head(self) -> MLMHead:
        """The module that maps hidden states (..., d) to logits (..., vocab)."""
        return self.head

    def remove_head(self) -> None:
        """Remove the head of the masked language model."""
        del self.head

    def forward(self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Logits (batch, time, vocab) of every position; the arguments are those of `hidden_states`."""
        logits: Tensor = self.lm_head(self.hidden_states(tokens, segments, mask))
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss described in `Model`; the head is applied only where the target is not ignored."""
        return self.lm_head.loss(*self._counted(*batch), z_loss)

    def target_logits(self, *batch: Tensor) -> Tensor:
        """The logits described in `Model`, (targets that are not ignored, vocab)."""
        hidden_states, _ = self._counted(*batch)
        logits: Tensor = self.lm_head(hidden_states)
        return logits

    def _counted(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (n, d) and targets (n,) of the n tokens whose target is not ignored."""
        *inputs, targets = batch
        counted = targets != IGNORE_INDEX
        return self.hidden_states(*inputs)[counted], targets[counted]

    def padding_mask(self, *batch: Tensor) -> Tensor | None:
        """The mask of a batch (tokens, segments, mask, targets), if it has one."""
        return mask_in(batch)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor]:
        """Tokens, every fourth of which is masked by the last token of the vocabulary, and targets."""
        c = self.config
        time = min(time, c.max_seq_len or time)
        tokens = torch.arange(batch * time, device="cpu").reshape(batch, time) % c.vocab_size
        masked = torch.arange(time, device="cpu") % 4 == 0
        return tokens.masked_fill(masked, c.vocab_size - 1), tokens.masked_fill(~masked, IGNORE_INDEX)

    def check_inputs(self, tokens: Tensor, segments: Tensor | None, mask: Tensor | None) -> None:
        """Check the shapes and dtypes, and that there are no more tokens than positions.

        Raises:
            DataError: A tensor has another shape or dtype, or there are more tokens than positions.
        """
        check_tokens(tokens)
        limit = self.max_seq_len
        if limit is not None and tokens.shape[1] > limit:
            raise DataError(f"tokens: {tokens.shape[1]} of them, but there are {limit} positions")
        if segments is not None and (segments.shape != tokens.shape or segments.dtype != torch.int64):
            raise DataError(
                f"segments: expected {tuple(tokens.shape)} of torch.int64, "
                f"got {tuple(segments.shape)} of {segments.dtype}"
            )
        check_mask(mask, tokens)
