"""Texts and pairs of texts as a model that classifies them reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.data.tokenizers.base import Tokenizer

WIDTHS = 8
"""Batches are padded to multiples of this, so that there are few shapes to compile."""


@dataclass(frozen=True)
class Laid:
    """The tokens of an example.

    Attributes:
        tokens: start, text, end; with a second text also that and its end.
        second: number of tokens that belong to the second text.
        cut: whether the texts were longer than the context.
    """

    tokens: tuple[int, ...]
    second: int
    cut: bool


@dataclass(frozen=True)
class Layout:
    """start text end [text end]: BERT's form, with the tokenizer's own tokens (Devlin et al. 2019).

    What ends a document ends a text, and so separates a pair in models that have no segments.

    Attributes:
        tokenizer: what makes the tokens.
        context: tokens at most.
        segments: how many the model tells apart.
    """

    tokenizer: Tokenizer
    context: int
    segments: int = 1

    @staticmethod
    def marks(pairs: bool) -> int:
        """Tokens of an example that are not its text's."""
        return 3 if pairs else 2

    def lay(self, text: str, pair: str | None = None) -> Laid:
        """Tokenise; of what is too long the longer text loses its end first, as in BERT."""
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        room = self.context - self.marks(second is not None)
        lengths = shortened(len(first), len(second or ()), room)
        cut = lengths != (len(first), len(second or ()))
        end = self.tokenizer.eos_id
        tokens = [self.tokenizer.start_id, *first[: lengths[0]], end]
        if second is None:
            return Laid(tuple(tokens), 0, cut)
        return Laid((*tokens, *second[: lengths[1]], end), lengths[1] + 1, cut)

    def batch(self, examples: Sequence[Laid]) -> tuple[Tensor, Tensor, Tensor]:
        """Pad behind the texts, to the longest of them.

        Args:
            examples: at least one.

        Returns:
            Tokens int64, segments int64 and mask bool, False where there is padding: (n, time) each. In a
            model of one segment all are 0.
        """
        longest = max(len(example.tokens) for example in examples)
        time = min(self.context, -(-longest // WIDTHS) * WIDTHS)
        shape = (len(examples), time)
        tokens = torch.full(shape, self.tokenizer.eos_id, device="cpu")
        segments, mask = torch.zeros_like(tokens), torch.zeros(shape, dtype=torch.bool, device="cpu")
        for i, example in enumerate(examples):
            end = len(example.tokens)
            tokens[i, :end] = torch.tensor(example.tokens)
            segments[i, end - example.second : end] = min(1, self.segments - 1)
            mask[i, :end] = True
        return tokens, segments, mask


def shortened(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths of two texts that together fit into `room` tokens: the longer one gives way."""
    over = max(0, first + second - room)
    if first >= second:
        off = min(over, first - second)
        first -= off
    else:
        off = min(over, second - first)
        second -= off
    both = over - off
    return first - (both + 1) // 2, second - both // 2
