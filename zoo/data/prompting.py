"""Prompting: turning text into input tokens of a generative model, and its output tokens into text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from zoo.data.tokenizers.base import Tokenizer

DECODER_START_ID = 0
"""First token of an encoder-decoder's target: T5's padding token, whose id may have other uses."""

SENTINEL = re.compile(r"<extra_id_(\d+)>")
"""T5's spelling of a sentinel in text."""


class Prompting(Protocol):
    """The encoding of prompts and the decoding of outputs of a model."""

    @property
    def decoder_start_id(self) -> int | None:
        """First token of an encoder-decoder's target; None for a decoder, which continues its prompt."""

    @property
    def continues_prompt(self) -> bool:
        """Whether the output text begins with the prompt; otherwise it is an answer on its own."""
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the ids that follow the tokenizer's vocabulary, in the order of the ids."""
        ...

    def eos_id(self, tokenizer: Tokenizer) -> int:
        """The id at which generation stops."""
        ...

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of a prompt as input of the model; an empty list for an empty prompt."""
        ...

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """Text of the generated ids."""
        ...


class HubPrompting:
    """Prompting of a model from the Hugging Face hub as in transformers, with special tokens in the text.

    Attributes:
        decoder_start_id: first token of an encoder-decoder's target; None for a decoder.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(self, decoder_start_id: int | None) -> None:
        self.decoder_start_id = decoder_start_id

    @property
    def continues_prompt(self) -> bool:
        """True for a decoder."""
        return self.decoder_start_id is None

    def eos_id(self, tokenizer: Tokenizer) -> int:
        """The tokenizer's end-of-document id."""
        return tokenizer.eos_id

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The ids of a text: after the prefix for a decoder, followed by `eos_id` for an encoder."""
        ids = tokenizer.encode_with_special_tokens(text)
        if not ids:
            return []
        return [*tokenizer.prefix_ids, *ids] if self.continues_prompt else [*ids, tokenizer.eos_id]

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """The text without special tokens, but with the sentinels in the answer of an encoder-decoder."""
        if self.continues_prompt:
            return decode_in_vocabulary(ids, tokenizer)
        names = [text for text in tokenizer.special_tokens if SENTINEL.fullmatch(text)]
        known = {token: name for name in names if (token := tokenizer.token_id(name)) is not None}
        return decode_with_sentinels(ids, tokenizer, known)


def decode_in_vocabulary(ids: Iterable[int], tokenizer: Tokenizer) -> str:
    """Decode generated ids without those outside the tokenizer's vocabulary, which a model may generate."""
    return tokenizer.decode(token for token in ids if token < tokenizer.vocab_size)


def decode_with_sentinels(ids: Iterable[int], tokenizer: Tokenizer, sentinels: Mapping[int, str]) -> str:
    """Decode generated ids as `decode_in_vocabulary` does, but with the sentinels between the texts.

    Args:
        ids: the ids.
        tokenizer: the tokenizer of the texts.
        sentinels: the spellings of the sentinels by their ids.
    """
    text, run = "", list[int]()
    for token in ids:
        if token in sentinels:
            text += decode_in_vocabulary(run, tokenizer) + sentinels[token]
            run.clear()
        else:
            run.append(token)
    return text + decode_in_vocabulary(run, tokenizer)


def stop_ids(stop: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> frozenset[int]:
    """The ids of the stop strings that are special tokens, which decoding leaves out of the text.

    Args:
        stop: strings before which a text ends.
        tokenizer: the tokenizer of the text.
        vocab_size: vocabulary of the model; tokens beyond it do not count.
    """
    ids = (tokenizer.token_id(text) for text in stop if text in tokenizer.special_tokens)
    return frozenset(token for token in ids if token is not None and token < vocab_size)
