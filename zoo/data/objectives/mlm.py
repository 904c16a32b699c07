"""Masked language modelling (Devlin et al. 2019): predict masked tokens from those on both sides."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from zoo.config.registry import OBJECTIVES
from zoo.data.dataset import Batch
from zoo.data.objectives.base import Objective
from zoo.nn.loss import IGNORE_INDEX

MASK = "[MASK]"
"""BERT's name of the mask token."""

RNG_STREAM = 0x6D6C6D
"""A seed that makes the random numbers of the masks independent of those of the shuffling."""


@OBJECTIVES.register
class MaskedLM(Objective):
    """Predict some tokens of a text, of which 80 % are masked, 10 % random, 10 % unchanged (BERT)."""

    type: Literal["mlm"] = "mlm"
    share: float = Field(0.15, gt=0, le=1, description="share of the tokens of every sequence to predict")
    masked: float = Field(
        0.8,
        ge=0,
        le=1,
        description="share of the predicted tokens that is masked; 1 in the Amos paper's code",
    )
    replaced: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the predicted tokens that becomes a random token; the rest stays",
    )

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if self.masked + self.replaced > 1 + 1e-9:
            raise ValueError(f"masked {self.masked:g} and replaced {self.replaced:g} add up to more than 1")
        return self

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The mask, the first id after the tokenizer's vocabulary."""
        return (MASK,)

    def tokens_per_example(self, context: int) -> int:
        """The number of tokens that the model reads: `context`."""
        return context

    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Partly masked tokens, and targets, -1 where nothing is predicted: (n, context) int64 each."""
        inputs, targets = windows.numpy().copy(), np.full(windows.shape, IGNORE_INDEX, dtype=np.int64)
        for i, row in enumerate(windows.numpy()):
            rng = np.random.default_rng([RNG_STREAM, seed, first + i])
            positions = self.predicted_positions(len(row), rng)
            targets[i, positions] = row[positions]
            inputs[i, positions] = self.corrupt(row[positions], vocab_size, rng)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def predicted_positions(self, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Distinct random positions to predict: the given share of `length`, rounded, but at least one."""
        return rng.permutation(length)[: max(1, round(self.share * length))]

    def corrupt(
        self, tokens: NDArray[np.int64], vocab_size: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Replace the tokens to predict by the tokens that the model reads instead.

        Args:
            tokens: (n,) int64 ids.
            vocab_size: size of the tokenizer's vocabulary, which is the id of the mask.
            rng: random generator.

        Returns:
            (n,) int64: the mask, a random token, or the token itself, by their shares.
        """
        draw = rng.random(len(tokens))
        replacements = rng.integers(vocab_size, size=len(tokens))
        unmasked = np.where(draw < self.masked + self.replaced, replacements, tokens)
        return np.where(draw < self.masked, vocab_size, unmasked)
