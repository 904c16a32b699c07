"""The interface of a language model: hidden states, head, cache, and the start of a generation.

Evaluation, sampling, classifiers, diagnostics and the hub ask a model for these and for nothing else, so
that a model defined anywhere can be used everywhere.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from zoo.models.base import Model, ModelConfig
from zoo.models.inputs import left_padding, up_to_last_target
from zoo.nn.classification import ClassificationHead, TanhPooler
from zoo.nn.lm_head import LMHead
from zoo.spec import Module
from zoo.utils.errors import DataError, ZooError


class LanguageModelConfig(ModelConfig):
    """The fields of a model of token sequences, each of which can be the trunk of a classifier.

    Attributes:
        bidirectional: whether the hidden state of a token depends on the tokens after it.
        has_decoder: whether the model has an encoder and a decoder, and hence `target_states`.
        reads_documents: whether a row of a batch may have several documents that do not see each other, given
            as a second input.
    """

    bidirectional: ClassVar[bool] = False
    has_decoder: ClassVar[bool] = False
    reads_documents: ClassVar[bool] = False

    if TYPE_CHECKING:  # Subclasses declare them as fields; fields of a base class would come first in files.

        @property
        def type(self) -> str:
            """The name of the model."""

        @property
        def vocab_size(self) -> int:
            """Number of tokens."""

        @property
        def d_model(self) -> int:
            """Width of the hidden states."""

    @property
    def segment_types(self) -> int:
        """How many segments (the first and second text of a pair) the model distinguishes; 1: it does not."""
        return 1

    @property
    def carries_state(self) -> bool:
        """Whether training continues every sequence from the state that the batch before it left."""
        return False

    def classification_head(self, classes: int, bias: bool = True) -> Module:
        """A head that turns pooled hidden states (n, d) into logits (n, classes), uninitialised."""
        return ClassificationHead(classes, self.d_model, bias=bias)

    def pooling_layer(self) -> Module:
        """The layer that a classifier may have between the pooled hidden states and the head, (n, d) each."""
        return TanhPooler(self.d_model)

    @abstractmethod
    def build(self) -> LanguageModel:
        """The model, uninitialised, on the current default device."""
        raise NotImplementedError


class Cache(Protocol):
    """What a model remembers of the tokens that it has read in a generation."""

    def fix_shapes(self) -> None:
        """Make every shape independent of the number of tokens read, and keep every tensor at its address.

        From then on one compiled step, or one step captured in a CUDA graph, serves every token.
        """


@dataclass(frozen=True)
class Generation:
    """A batch of texts at the beginning of their generation.

    Attributes:
        tokens: (batch, time) int64, what the model reads first: the prompts, or the start of the answers.
        mask: (batch, time) bool, False where `tokens` is padding; None: there is no padding.
        cache: what the model remembers; `read` extends it.
        read: tokens that the model has not read yet, (batch, time) int64 -> logits of the token that
            follows them, (batch, vocab).
    """

    tokens: Tensor
    mask: Tensor | None
    cache: Cache
    read: Callable[[Tensor], Tensor]


class LanguageModel(Model):
    """A model that reads sequences of tokens: the base of all models of text.

    Attributes:
        config: the sizes.
        writes: what the model makes of a prompt. "continuation": it predicts each token from those before
            it, so that ``lm_head(hidden_states(tokens))`` are the logits of the tokens that follow.
            "answer": it reads the prompt as a source and writes a target. None: it writes no text.
        supports_padding: whether prompts may be padded on the left, so that prompts of different lengths
            can be continued in one batch.
    """

    config: LanguageModelConfig
    writes: ClassVar[Literal["continuation", "answer"] | None] = None
    supports_padding: ClassVar[bool] = False

    @property
    def max_seq_len(self) -> int | None:
        """The largest number of tokens in a sequence, or None if a sequence may have any length."""
        return self.config.max_seq_len

    @property
    def lm_head(self) -> Module:
        """The module that maps hidden states (..., d) to logits (..., vocab)."""
        raise NotImplementedError

    @property
    def compiled_parts(self) -> Sequence[tuple[nn.Module, str]]:
        """The blocks, and the loss of a head that is applied to equally many tokens in every step."""
        loss = [(self.lm_head, "loss")] if isinstance(self.lm_head, LMHead) else []
        return [*super().compiled_parts, *loss]

    def padding_mask(self, *batch: Tensor) -> Tensor | None:
        """Which positions of a training batch are data, as described in `Model`.

        In a model that predicts each token from those before it, no target depends on the positions behind
        the last target of their row: these are the padding.
        """
        return up_to_last_target(batch[-1]) if self.writes == "continuation" else None

    def hidden_states(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Compute the hidden states of texts.

        Args:
            tokens: (batch, time) int64.
            segments: (batch, time) int64, the segment of each token, for models that distinguish segments;
                None: all 0.
            mask: (batch, time) bool, False where there is padding, which comes after the text; None: there
                is no padding.

        Returns:
            The hidden states of the last layer, (batch, time, d); those of padding have no meaning.

        Raises:
            DataError: The inputs have another shape or dtype, or there are more tokens than `max_seq_len`.
        """
        raise NotImplementedError

    def remove_head(self) -> None:
        """Remove every submodule that `hidden_states` does not use; the model then predicts nothing."""
        raise NotImplementedError

    def target_states(self, tokens: Tensor, mask: Tensor | None, start_id: int) -> Tensor:
        """Read texts twice: as sources in the encoder, and as targets in the decoder.

        Only a model whose configuration has `has_decoder` offers this method.

        Args:
            tokens: (batch, time) int64.
            mask: (batch, time) bool, False for padding, which comes after the text; None: there is none.
            start_id: the token in front of the target, whose last token the decoder does not read.

        Returns:
            The decoder's hidden states, (batch, time, d); each has read the source and the tokens before its
            own. Those of padding have no meaning.

        Raises:
            DataError: The inputs have another shape or dtype.
        """
        raise NotImplementedError

    def remove_read_out(self) -> None:
        """Remove every submodule that `target_states` does not use."""
        raise NotImplementedError

    def cache(
        self,
        batch: int,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        padding: Tensor | None = None,
        multiple_of: int = 1,
    ) -> Cache:
        """An empty cache, which `forward` takes as its second argument and extends.

        Args:
            batch: number of sequences.
            length: largest number of tokens in each, padding included.
            device: where the cache lives.
            dtype: dtype of its entries; None: that of the weights, or float32 for the state of an LSTM.
            padding: (batch,) int64, number of padding tokens in front of each text, which the text does not
                see and which do not count as positions; None: there is no padding.
            multiple_of: the room for tokens is rounded up to a multiple of this number.
        """
        raise NotImplementedError

    def start_generation(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        mask: Tensor | None = None,
        start_id: int | None = None,
        multiple_of: int = 1,
    ) -> Generation:
        """Prepare to continue prompts.

        Args:
            prompt: (batch, time) int64 on the model's device, time >= 1.
            max_new_tokens: largest number of tokens to add to each; the model does not read the last one.
            mask: (batch, time) bool, False where the prompt is padded; None: there is no padding.
            start_id: the token that every answer starts with, for a model that writes answers.
            multiple_of: the room of the cache is rounded up to a multiple of this number.

        Raises:
            ZooError: The model writes no text, `mask` is given but the model does not support padding, or the
                model has no use for `start_id`.
            DataError: The tokens are more than `max_seq_len`, or `mask` does not fit the prompt.
        """
        name = type(self).__name__
        if self.writes != "continuation":
            raise ZooError(f"generate: {name} does not continue text; expected a decoder")
        if start_id is not None:
            raise ZooError("generate: start_id has no effect on a model that is no encoder-decoder")
        if mask is not None and not self.supports_padding:
            raise ZooError(
                f"generate: {name} does not support padding; expected prompts of one length, without a mask"
            )
        read_tokens = self.check_length(prompt.shape[1] + max_new_tokens) - 1
        padding = None if mask is None else left_padding(mask, prompt)
        cache = self.cache(
            len(prompt), read_tokens, device=prompt.device, padding=padding, multiple_of=multiple_of
        )

        def read(tokens: Tensor) -> Tensor:
            logits: Tensor = self(tokens, cache, last=True)[:, -1]
            return logits

        return Generation(prompt, mask, cache, read)

    def check_length(self, length: int) -> int:
        """Check, and return, the length of sequences of which the last token is not read.

        Raises:
            DataError: The tokens to read are more than `max_seq_len`.
        """
        if self.max_seq_len is not None and length - 1 > self.max_seq_len:
            raise DataError(
                f"generate: {length - 1} tokens are read, but there are {self.max_seq_len} positions"
            )
        return length
