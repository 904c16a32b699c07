"""The surprise at a text, per token, word and byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LARGEST = 700.0
"""Nats of which a float still holds the exponential."""


@dataclass(frozen=True)
class Score:
    """How well a text was predicted; models of different tokenizers compare by word and by byte.

    Attributes:
        file: the text's.
        context: tokens of a window; None: all that come before, by a state that is carried.
        stride: new tokens of a window; None with `context`.
        tokens: how many were predicted.
        words: stretches of the text without white space.
        utf8_bytes: of the text.
        nats: -log of the probability of all tokens.
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
        """exp(nats / tokens); None: too large for a number."""
        return _exp(self.nats / self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """exp(nats / words); None: too large for a number."""
        return _exp(self.nats / self.words)

    @property
    def byte_perplexity(self) -> float | None:
        """exp(nats / bytes); None: too large for a number."""
        return _exp(self.nats / self.utf8_bytes)

    @property
    def bits_per_byte(self) -> float:
        """log2 of the perplexity per byte."""
        return self.nats / self.utf8_bytes / math.log(2)

    def plain(self) -> dict[str, Any]:
        """For JSON: all of the above."""
        derived = ("token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
        return vars(self) | {name: getattr(self, name) for name in derived}


def total(scores: Sequence[Score]) -> Score:
    """Several texts under the same window as if they were one."""
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
