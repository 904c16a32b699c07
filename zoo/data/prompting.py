"""What lies between the words of a user and the tokens of a model that writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from zoo.data.tokenizers.base import Tokenizer

START = 0
"""What the target of an encoder-decoder starts with, whatever it means elsewhere: T5's padding."""


class Prompting(Protocol):
    """How a prompt is put to a model, and what the model wrote is read."""

    @property
    def start(self) -> int | None:
        """What the target of an encoder-decoder starts with; None: a decoder, which continues its prompt."""

    @property
    def echoes(self) -> bool:
        """Whether the prompt is part of the text: it is continued rather than answered."""
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the ids behind the tokenizer's, in their order."""
        ...

    def end(self, tokenizer: Tokenizer) -> int:
        """The id that ends what the model writes."""
        ...

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens of a prompt, as the model is given them; none for no text."""
        ...

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """What the model wrote, as text."""
        ...


class Foreign:
    """How a model of the hub is asked: as transformers would, special tokens of the text included.

    Attributes:
        start: what the target of an encoder-decoder (T5) starts with, its padding; None: a decoder.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(self, answers: bool) -> None:
        """Say what it is.

        Args:
            answers: whether it is an encoder-decoder.
        """
        self.start = START if answers else None

    @property
    def echoes(self) -> bool:
        """A decoder's."""
        return self.start is None

    def end(self, tokenizer: Tokenizer) -> int:
        """The end of a document."""
        return tokenizer.eos_id

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """What opens a text, if anything does, and the text; a source ends as a document does."""
        ids = tokenizer.encode_markers(text)
        if not ids:
            return []
        return [*tokenizer.opening, *ids] if self.echoes else [*ids, tokenizer.eos_id]

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """The text, without special tokens."""
        return readable(ids, tokenizer)


def readable(ids: Iterable[int], tokenizer: Tokenizer) -> str:
    """The text of what a model wrote, without ids that are no token: its vocabulary may be larger."""
    return tokenizer.decode(token for token in ids if token < tokenizer.vocab_size)
