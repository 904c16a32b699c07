"""Span corruption (Raffel et al. 2020, section 3.1.4): fill in the spans that were left out of a text.

    text     Thank you for inviting me to your party last week
    source   Thank you <0> me to your party <1> week <end>
    targets  <0> for inviting <1> last <end>

A source has exactly `context` tokens, and as many tokens of text go into it as then fit; the targets
have a fixed length as well. With 15 % in spans of 3 tokens, 568 tokens make a source of 512 and
targets of 114.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from zoo.config.registry import OBJECTIVES
from zoo.data.dataset import Batch, Order
from zoo.data.objectives.base import Objective
from zoo.data.objectives.batches import training_windows, validation_windows
from zoo.data.prompting import START
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError

CHOICES = 0x7370616E
"""Tells the random numbers of the spans from those of the order of the text."""

END = "<|end|>"
"""What ends sources and targets."""

SENTINEL = re.compile(r"<extra_id_(\d+)>")
"""How T5 writes a sentinel in a text."""


@dataclass(frozen=True)
class Shape:
    """How a text is divided.

    Attributes:
        text: number of its tokens.
        noise: how many of them are left out ...
        spans: ... in so many spans.
    """

    text: int
    noise: int
    spans: int

    @property
    def source(self) -> int:
        """What is left, a sentinel for every span, and the end."""
        return self.text - self.noise + self.spans + 1

    @property
    def targets(self) -> int:
        """What was left out, each span behind its sentinel, and the end."""
        return self.noise + self.spans + 1


@OBJECTIVES.register
class SpanCorruption(Objective):
    """Fill in spans that were left out: 15 % of the text, 3 tokens each on average (T5)."""

    type: Literal["span-corruption"] = "span-corruption"
    density: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are left out")
    mean_span: float = Field(3.0, ge=1, description="tokens in a span on average")
    sentinels: int = Field(100, gt=0, description="number of ids that stand for a span")

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The end, then the sentinels from the last to the first."""
        return (END, *(f"<extra_id_{i}>" for i in reversed(range(self.sentinels))))

    def sentinel(self, i: int, vocabulary: int) -> int:
        """The id of sentinel `i` behind a vocabulary."""
        return vocabulary + self.sentinels - i

    @property
    def start(self) -> int:
        """What prefixes start with."""
        return START

    def end(self, tokenizer: Tokenizer) -> int:
        """The id that ends sources and targets, the first behind the tokenizer's."""
        return tokenizer.vocab_size

    def reads(self, context: int) -> int:
        """The largest text whose source fits: it then has `context` tokens."""
        return self.shape(context).text

    def shape(self, context: int) -> Shape:
        """How texts are divided so that sources have exactly `context` tokens.

        Raises:
            DataError: no text can be, or it takes more spans than there are sentinels.
        """
        found = self._divide(max(context - 1, 2))  # which fits: there are no more spans than noise
        # One token more lengthens the source by one or by none, so that every length is met.
        while (longer := self._divide(found.text + 1)).source <= context:
            found = longer
        if found.source != context or found.spans > found.text - found.noise:
            raise DataError(
                f"data.context {context} is too small to leave out {self.density:.0%} of a text "
                f"in spans of {self.mean_span:g}"
            )
        if found.spans > self.sentinels:
            raise DataError(
                f"data.context {context} makes {found.spans} spans, but data.objective.sentinels is "
                f"{self.sentinels}: raise it, or data.objective.mean_span"
            )
        return found

    def _divide(self, text: int) -> Shape:
        noise = min(max(round(self.density * text), 1), text - 1)
        return Shape(text, noise, max(round(noise / self.mean_span), 1))

    def training(self, tokens: TokenFile, order: Order, context: int, vocabulary: int) -> Batch:
        """Sources (examples, context), prefixes and targets (examples, their length), int64."""
        shape = self.shape(context)
        windows = training_windows(tokens, order, shape.text, shape.text)
        return self._corrupt(windows, shape, order.seed, order.first, vocabulary)

    def validation(
        self, tokens: TokenFile, order: Order, context: int, vocabulary: int, batches: int | None
    ) -> Iterator[Batch]:
        """Windows spread evenly over the text, with the same spans in every run."""
        shape = self.shape(context)
        rows = validation_windows(tokens, order, shape.text, shape.text, batches)
        return (self._corrupt(windows, shape, 0, first, vocabulary) for first, windows in rows)

    def _corrupt(
        self, windows: Tensor, shape: Shape, seed: int, first: int, vocabulary: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Divide each window by its own number alone, so that ranks and steps do not matter.

        Args:
            windows: (n, text) int64.
            shape: how each is divided.
            seed: of the spans.
            first: number of the first window.
            vocabulary: number of the tokenizer's tokens.

        Returns:
            Sources, prefixes and targets.
        """
        sources = np.full((len(windows), shape.source), vocabulary, dtype=np.int64)
        targets = np.full((len(windows), shape.targets), vocabulary, dtype=np.int64)
        for i, row in enumerate(windows.numpy()):
            chance = np.random.default_rng([CHOICES, seed, first + i])
            kept = parts(shape.text - shape.noise, shape.spans, chance)
            left_out = parts(shape.noise, shape.spans, chance)
            source: list[int] = []
            target: list[int] = []
            for span, (a, b, c) in enumerate(stretches(kept, left_out)):
                source += [*row[a:b], self.sentinel(span, vocabulary)]
                target += [self.sentinel(span, vocabulary), *row[b:c]]
            sources[i, :-1], targets[i, :-1] = source, target
        prefixes = np.concatenate((np.full((len(windows), 1), START), targets[:, :-1]), 1)
        return torch.from_numpy(sources), torch.from_numpy(prefixes), torch.from_numpy(targets)

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """A source: the tokens of a text, in which ``<extra_id_0>`` stands for what is to be filled in.

        Raises:
            DataError: a sentinel that there is not.
        """
        ids: list[int] = []
        for i, piece in enumerate(SENTINEL.split(text)):  # texts and numbers in turn
            if i % 2 == 0:
                ids += tokenizer.encode(piece)
                continue
            if int(piece) >= self.sentinels:
                raise DataError(f"<extra_id_{piece}>: there are {self.sentinels} sentinels, from 0 on")
            ids.append(self.sentinel(int(piece), tokenizer.vocab_size))
        return [*ids, self.end(tokenizer)] if ids else []

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """A target as text, with its sentinels; the start and whatever no text consists of are left out."""
        text, run = "", list[int]()
        first, last = self.sentinel(0, tokenizer.vocab_size), self.end(tokenizer)
        for token in [*ids, last]:
            if token < last:
                run.append(token)
                continue
            text += tokenizer.decode(run)
            run.clear()
            if last < token <= first:
                text += f"<extra_id_{first - token}>"
        return text


def parts(total: int, count: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Divide a length into parts of at least 1, every way equally likely (T5's random segmentation).

    Args:
        total: what the parts add up to, at least `count`.
        count: number of parts.
        chance: source of chance.

    Returns:
        (count,) lengths.
    """
    cuts = np.sort(chance.permutation(total - 1)[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)


def stretches(kept: NDArray[np.int64], left_out: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Where each kept stretch begins, where the span left out behind it begins, and where that ends."""
    ends = np.cumsum(kept + left_out).tolist()
    return zip([0, *ends[:-1]], (np.array(ends) - left_out).tolist(), ends, strict=True)
