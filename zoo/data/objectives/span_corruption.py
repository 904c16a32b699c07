"""Span corruption (Raffel et al. 2020, section 3.1.4): predict the spans that were removed from a text.

    text     Thank you for inviting me to your party last week
    source   Thank you <0> me to your party <1> week <end>
    targets  <0> for inviting <1> last <end>

A source has exactly `context` tokens and is made from the longest text that fits; the targets have a fixed
length as well. With 15 % in spans of 3 tokens, 568 tokens of text make a source of 512 and targets of 114.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from zoo.config.registry import OBJECTIVES
from zoo.data.dataset import Batch
from zoo.data.objectives.base import Objective
from zoo.data.objectives.named_tokens import named_token
from zoo.data.prompting import DECODER_START_ID, SENTINEL, decode_with_sentinels
from zoo.data.tokenizers.base import Tokenizer
from zoo.utils.errors import DataError

RNG_STREAM = 0x7370616E
"""A seed that makes the random numbers of the spans independent of those of the shuffling."""

END = "<|end|>"
"""Name of the token that ends sources and targets."""


@dataclass(frozen=True)
class SpanLengths:
    """Numbers of tokens and spans of an example.

    Attributes:
        text: number of tokens of the text.
        noise: number of tokens that are removed from it.
        spans: number of spans that the removed tokens form.
    """

    text: int
    noise: int
    spans: int

    @property
    def source(self) -> int:
        """Length of the source: the remaining tokens, a sentinel for every span, and the end."""
        return self.text - self.noise + self.spans + 1

    @property
    def targets(self) -> int:
        """Length of the targets: the removed tokens, a sentinel before every span, and the end."""
        return self.noise + self.spans + 1


@dataclass(frozen=True)
class SpanTokens:
    """The special tokens of an example.

    Attributes:
        end: id that ends sources and targets.
        sentinels: ids of the sentinels, from the first one on.
    """

    end: int
    sentinels: Sequence[int]


@OBJECTIVES.register
class SpanCorruption(Objective):
    """Predict removed spans: 15 % of the text, 3 tokens each on average (T5)."""

    disjoint_windows: ClassVar[bool] = True
    token_key: ClassVar[str | None] = "sentinel_token"

    type: Literal["span-corruption"] = "span-corruption"
    density: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are removed")
    mean_span: float = Field(3.0, ge=1, description="mean number of tokens in a span")
    sentinels: int = Field(100, gt=0, description="number of sentinel ids, which replace the spans")
    sentinel_token: str | None = Field(
        default=None,
        description="text of the tokenizer's sentinels with {} for their number, such as '<extra_id_{}>', "
        "for a model that was trained with them: sources and targets then end with the tokenizer's end of a "
        "document; null: the sentinels and their end are the ids after the vocabulary",
    )
    _tokens: SpanTokens | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _sentinels_have_numbers(self) -> Self:
        if self.sentinel_token is not None and self.sentinel_token.count("{}") != 1:
            raise ValueError(
                f"sentinel_token {self.sentinel_token!r}: expected {{}} once, for the number of the sentinel"
            )
        return self

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The end token, then the sentinels from the last to the first; none with a `sentinel_token`."""
        if self.sentinel_token is not None:
            return ()
        return (END, *(f"<extra_id_{i}>" for i in reversed(range(self.sentinels))))

    def for_tokenizer(self, tokenizer: Tokenizer) -> SpanCorruption:
        """The objective with the ids of the tokenizer's sentinels and of its end of a document.

        Raises:
            DataError: The tokenizer does not have all the sentinels.
        """
        if self.sentinel_token is None:
            return self
        bound = self.model_copy()
        bound._tokens = self._tokens_of(tokenizer)
        return bound

    def required_vocab_size(self, tokenizer: Tokenizer) -> int:
        """The vocabulary of the texts, and the sentinels."""
        tokens = self._tokens_of(tokenizer)
        return max(tokenizer.needed_size, tokens.end + 1, max(tokens.sentinels) + 1)

    def _tokens_of(self, tokenizer: Tokenizer) -> SpanTokens:
        """The special tokens of examples from texts of a tokenizer.

        Raises:
            DataError: The tokenizer does not have all the sentinels.
        """
        if self._tokens is not None:
            return self._tokens
        if (text := self.sentinel_token) is None:
            return self._tokens_after(tokenizer.vocab_size)
        names = [text.replace("{}", str(i)) for i in range(self.sentinels)]
        key = "data.objective.sentinel_token"
        return SpanTokens(tokenizer.eos_id, [named_token(tokenizer, name, key) for name in names])

    def _tokens_after(self, vocab_size: int) -> SpanTokens:
        """The special tokens after a vocabulary: the end, then the sentinels from the last to the first."""
        return SpanTokens(vocab_size, range(vocab_size + self.sentinels, vocab_size, -1))

    @property
    def decoder_start_id(self) -> int:
        """T5's padding token."""
        return DECODER_START_ID

    def eos_id(self, tokenizer: Tokenizer) -> int:
        """The id that ends sources and targets."""
        return self._tokens_of(tokenizer).end

    def tokens_per_example(self, context: int) -> int:
        """Length of the longest text whose source has `context` tokens."""
        return self.lengths(context).text

    def lengths(self, context: int) -> SpanLengths:
        """The lengths with which sources have exactly `context` tokens.

        Raises:
            DataError: The context is too small, or requires more spans than there are sentinels.
        """
        # The source of this text fits, because there are no more spans than removed tokens.
        lengths = self._lengths_of(max(context - 1, 2))
        # Another token makes the source longer by one or by none, so that every length is reached.
        while (longer := self._lengths_of(lengths.text + 1)).source <= context:
            lengths = longer
        if lengths.source != context or lengths.spans > lengths.text - lengths.noise:
            raise DataError(
                f"data.context {context} is too small to leave out {self.density:.0%} of a text "
                f"in spans of {self.mean_span:g}"
            )
        if lengths.spans > self.sentinels:
            raise DataError(
                f"data.context {context} makes {lengths.spans} spans, but data.objective.sentinels is "
                f"{self.sentinels}: raise it, or data.objective.mean_span"
            )
        return lengths

    def _lengths_of(self, text: int) -> SpanLengths:
        noise = min(max(round(self.density * text), 1), text - 1)
        return SpanLengths(text, noise, max(round(noise / self.mean_span), 1))

    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Sources, decoder inputs (the targets shifted right) and targets, (n, their length) int64."""
        tokens, lengths = self._tokens or self._tokens_after(vocab_size), self._lengths_of(windows.shape[1])
        sources = np.full((len(windows), lengths.source), tokens.end, dtype=np.int64)
        targets = np.full((len(windows), lengths.targets), tokens.end, dtype=np.int64)
        for i, row in enumerate(windows.numpy()):
            rng = np.random.default_rng([RNG_STREAM, seed, first + i])
            kept = random_partition(lengths.text - lengths.noise, lengths.spans, rng)
            removed = random_partition(lengths.noise, lengths.spans, rng)
            source: list[int] = []
            target: list[int] = []
            for span, (a, b, c) in enumerate(span_boundaries(kept, removed)):
                source += [*row[a:b], tokens.sentinels[span]]
                target += [tokens.sentinels[span], *row[b:c]]
            sources[i, :-1], targets[i, :-1] = source, target
        start = np.full((len(windows), 1), DECODER_START_ID)
        decoder_inputs = np.concatenate((start, targets[:, :-1]), 1)
        return torch.from_numpy(sources), torch.from_numpy(decoder_inputs), torch.from_numpy(targets)

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """Token ids of a source, in which ``<extra_id_0>`` and so on mark the spans to be filled in.

        With a `sentinel_token` the tokenizer finds its sentinels itself, as in transformers.

        Raises:
            DataError: The text has a sentinel that does not exist.
        """
        tokens = self._tokens_of(tokenizer)
        ids: list[int] = []
        if self.sentinel_token is not None:
            ids = tokenizer.encode_with_special_tokens(text)
            return [*ids, tokens.end] if ids else []
        for i, piece in enumerate(SENTINEL.split(text)):  # texts and numbers alternate
            if i % 2 == 0:
                ids += tokenizer.encode(piece)
                continue
            if int(piece) >= self.sentinels:
                raise DataError(f"<extra_id_{piece}>: there are {self.sentinels} sentinels, from 0 on")
            ids.append(tokens.sentinels[int(piece)])
        return [*ids, tokens.end] if ids else []

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """Text of a target, with its sentinels; all other special tokens are left out."""
        tokens, spelling = self._tokens_of(tokenizer), self.sentinel_token or "<extra_id_{}>"
        names = {token: spelling.replace("{}", str(i)) for i, token in enumerate(tokens.sentinels)}
        return decode_with_sentinels(ids, tokenizer, names)


def random_partition(total: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Partition a length into parts of at least 1, uniformly at random (T5's random segmentation).

    Args:
        total: sum of the parts, at least `count`.
        count: number of parts.
        rng: random generator.

    Returns:
        (count,) int64 lengths.
    """
    cuts = np.sort(rng.permutation(total - 1)[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)


def span_boundaries(kept: NDArray[np.int64], removed: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """For each span: the start of the kept text before it, and the start and the end of the span."""
    ends = np.cumsum(kept + removed).tolist()
    return zip([0, *ends[:-1]], (np.array(ends) - removed).tolist(), ends, strict=True)
