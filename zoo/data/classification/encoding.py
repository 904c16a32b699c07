"""Single texts and pairs of texts as the token sequences that a classifier reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.data.map_dataset import padded_length
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceTokenizer


@dataclass(frozen=True)
class EncodedText:
    """The tokens of an example.

    Attributes:
        tokens: tokens of the text, or of the texts of a pair, with the special tokens around them.
        n_second: number of tokens that belong to the second text, its end included.
        truncated: whether the texts were longer than the context.
    """

    tokens: tuple[int, ...]
    n_second: int
    truncated: bool


@dataclass(frozen=True)
class TextEncoder(ABC):
    """The base class of encoders of texts and pairs for a classifier.

    Attributes:
        tokenizer: tokenizer of the texts.
        context: maximal number of tokens of an example.
        segments: number of segments of the model.
    """

    tokenizer: Tokenizer
    context: int
    segments: int = 1

    @abstractmethod
    def encode(self, text: str, pair: str | None = None) -> EncodedText:
        """Tokenise; if the result is too long, the longer text is truncated first, as in BERT."""

    def collate(self, examples: Sequence[EncodedText]) -> tuple[Tensor, Tensor, Tensor]:
        """Pad on the right to the longest example.

        Args:
            examples: the examples of the batch, at least one.

        Returns:
            Token ids int64, segment ids int64 (all 0 if the model has one segment) and attention mask bool
            (False at padding): (n, time) each.
        """
        time = padded_length([len(example.tokens) for example in examples], self.context)
        shape = (len(examples), time)
        tokens = torch.full(shape, self.tokenizer.eos_id, device="cpu")
        segments, mask = torch.zeros_like(tokens), torch.zeros(shape, dtype=torch.bool, device="cpu")
        for i, example in enumerate(examples):
            end = len(example.tokens)
            tokens[i, :end] = torch.tensor(example.tokens)
            segments[i, end - example.n_second : end] = min(1, self.segments - 1)
            mask[i, :end] = True
        return tokens, segments, mask


@dataclass(frozen=True)
class FramedTextEncoder(TextEncoder):
    """Encodes texts with the special tokens that a Hugging Face tokenizer's files put around them."""

    tokenizer: HuggingFaceTokenizer

    def encode(self, text: str, pair: str | None = None) -> EncodedText:
        """Tokenise a text or a pair, see `TextEncoder.encode`."""
        tokens, segments, truncated = self.tokenizer.encode_framed(text, pair, self.context)
        return EncodedText(tuple(tokens), sum(segments), truncated)


@dataclass(frozen=True)
class TextPairEncoder(TextEncoder):
    """Encodes ``start text end [text end]``: BERT's input format with the tokenizer's own special tokens.

    The tokenizer's end-of-document token stands for ``[SEP]``, so it also separates the two texts for models
    without segments (Devlin et al. 2019). There is no start if a decoder reads the text, because it puts its
    own token in front, as in T5.

    Attributes:
        starts: whether there is a start token.
    """

    starts: bool = True

    @staticmethod
    def n_special_tokens(is_pair: bool, starts: bool) -> int:
        """Number of tokens of an example that are not part of its texts."""
        return starts + 1 + is_pair

    def encode(self, text: str, pair: str | None = None) -> EncodedText:
        """Tokenise a text or a pair, see `TextEncoder.encode`."""
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        room = self.context - self.n_special_tokens(second is not None, self.starts)
        lengths = truncated_lengths(len(first), len(second or ()), room)
        truncated = lengths != (len(first), len(second or ()))
        end = self.tokenizer.eos_id
        tokens = [*([self.tokenizer.start_id] if self.starts else []), *first[: lengths[0]], end]
        if second is None:
            return EncodedText(tuple(tokens), 0, truncated)
        return EncodedText((*tokens, *second[: lengths[1]], end), lengths[1] + 1, truncated)


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts that together fit into `room` tokens; the longer one is truncated first."""
    excess = max(0, first + second - room)
    if first >= second:
        off = min(excess, first - second)
        first -= off
    else:
        off = min(excess, second - first)
        second -= off
    both = excess - off
    return first - (both + 1) // 2, second - both // 2
