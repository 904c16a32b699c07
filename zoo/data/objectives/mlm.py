"""Masked language modelling (Devlin et al. 2019): recover tokens from those on both sides."""

from __future__ import annotations

from collections.abc import Iterator
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
from zoo.data.tokens import TokenFile
from zoo.nn.loss import IGNORED

MASKED, REPLACED = 0.8, 0.1
"""Of the chosen tokens: shares that become the mask or another token; the rest is left as it is."""

MASK = "[MASK]"
"""What BERT calls the token in the place of those to recover."""

CHOICES = 0x6D6C6D
"""Tells the random numbers of masking from those of the order of the text."""


@OBJECTIVES.register
class MaskedLM(Objective):
    """Recover masked tokens; of those chosen 80 % are masked, 10 % replaced, 10 % left (BERT)."""

    type: Literal["mlm"] = "mlm"
    share: float = Field(0.15, gt=0, le=1, description="share of the tokens of every sequence to recover")

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The mask, the first id after the tokenizer's."""
        return (MASK,)

    def reads(self, context: int) -> int:
        """As many as the model sees: nothing follows them."""
        return context

    def training(self, tokens: TokenFile, order: Order, context: int, vocabulary: int) -> Batch:
        """Tokens, some of them masked, and targets: (examples, context) int64 each."""
        windows = training_windows(tokens, order, context, context)
        return self._mask(windows, order.seed, order.first, vocabulary)

    def validation(
        self, tokens: TokenFile, order: Order, context: int, vocabulary: int, batches: int | None
    ) -> Iterator[Batch]:
        """Windows spread evenly over the text, masked in the same places in every run."""
        rows = validation_windows(tokens, order, context, context, batches)
        return (self._mask(windows, 0, first, vocabulary) for first, windows in rows)

    def _mask(self, windows: Tensor, seed: int, first: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Mask each window by its own number alone, so that ranks and steps do not matter.

        Args:
            windows: (n, context) int64.
            seed: of the masks.
            first: number of the first window.
            vocabulary: number of the tokenizer's tokens.

        Returns:
            Inputs and targets, int64 like `windows`; the target of what is not to be recovered is -1.
        """
        inputs, targets = windows.numpy().copy(), np.full(windows.shape, IGNORED, dtype=np.int64)
        for i, row in enumerate(windows.numpy()):
            chance = np.random.default_rng([CHOICES, seed, first + i])
            where = self.chosen(len(row), chance)
            targets[i, where] = row[where]
            inputs[i, where] = corrupted(row[where], vocabulary, chance)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def chosen(self, length: int, chance: np.random.Generator) -> NDArray[np.int64]:
        """Positions to recover: the share of `length`, rounded, at least one, all different."""
        return chance.permutation(length)[: max(1, round(self.share * length))]


def corrupted(tokens: NDArray[np.int64], vocabulary: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """What the model sees of chosen tokens.

    Args:
        tokens: (n,) ids.
        vocabulary: number of the tokenizer's tokens; that number is the mask.
        chance: source of chance.

    Returns:
        (n,): mostly the mask, some other token now and then, or the token itself.
    """
    draw = chance.random(len(tokens))
    others = chance.integers(vocabulary, size=len(tokens))
    kept = np.where(draw < MASKED + REPLACED, others, tokens)
    return np.where(draw < MASKED, vocabulary, kept)
