"""The perplexity of a text, per token, word and byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zoo.utils.untyped import JsonObject

LARGEST = 700.0
"""The largest number of nats whose exponential is a finite float."""


@dataclass(frozen=True)
class Score:
    """The score of a text; models with different tokenizers can be compared by word and by byte.

    Attributes:
        file: name of the text file.
        context: number of tokens in a window; None if the model carries its state through the whole text.
        stride: number of new tokens in a window; None without windows.
        tokens: number of tokens that were predicted.
        words: number of words, separated by white space.
        utf8_bytes: number of bytes of the text.
        nats: -ln p of all tokens together.
    """

    file: str
    context: int | None
    stride: int | None
    tokens: int
    words: int
    utf8_bytes: int
    nats: float

    @property
    def token_perplexity(self) -> float | None:
        """exp(nats / tokens); None if it overflows."""
        return _exp(self.nats / self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """exp(nats / words); None if it overflows."""
        return _exp(self.nats / self.words)

    @property
    def byte_perplexity(self) -> float | None:
        """exp(nats / bytes); None if it overflows."""
        return _exp(self.nats / self.utf8_bytes)

    @property
    def bits_per_byte(self) -> float:
        """The base-2 logarithm of the perplexity per byte."""
        return self.nats / self.utf8_bytes / math.log(2)

    def plain(self) -> JsonObject:
        """All attributes and derived measures, for JSON."""
        derived = ("token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
        return vars(self) | {name: getattr(self, name) for name in derived}


def total(scores: Sequence[Score]) -> Score:
    """The score of several texts, read in the same windows, as if they were one text."""
    return Score(
        "total",
        scores[0].context,
        scores[0].stride,
        sum(s.tokens for s in scores),
        sum(s.words for s in scores),
        sum(s.utf8_bytes for s in scores),
        math.fsum(s.nats for s in scores),
    )


def _exp(nats: float) -> float | None:
    return math.exp(nats) if nats <= LARGEST else None
