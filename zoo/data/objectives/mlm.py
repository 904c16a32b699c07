"""Masked language modelling (Devlin et al. 2019): predict masked tokens from those on both sides."""

from __future__ import annotations

from collections.abc import Sequence
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
from zoo.data.tokenizers.base import Tokenizer
from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import DataError

MASK = "[MASK]"
"""BERT's name of the mask token."""

RNG_STREAM = 0x6D6C6D
"""A seed that makes the random numbers of the masks independent of those of the shuffling."""


@dataclass(frozen=True)
class MaskedLMTokens:
    """The special tokens of an example.

    Attributes:
        mask: id of the mask.
        around: ids in front of the text, and ids behind it.
        end: id of the token that ends a document, which is not predicted; None: it is, like any other.
    """

    mask: int
    around: tuple[Sequence[int], Sequence[int]] = ((), ())
    end: int | None = None


@OBJECTIVES.register
class MaskedLM(Objective):
    """Predict some tokens of a text, of which 80 % are masked, 10 % random, 10 % unchanged (BERT)."""

    disjoint_windows: ClassVar[bool] = True
    token_key: ClassVar[str | None] = "mask_token"

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
    mask_token: str | None = Field(
        default=None,
        description="text of the tokenizer's mask, such as '[MASK]' or '<mask>', for a model that was "
        "trained with it: the tokenizer's special tokens then stand around every example, and neither they "
        "nor the ends of documents are predicted; null: the mask is the first id after the vocabulary",
    )
    _tokens: MaskedLMTokens | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if self.masked + self.replaced > 1 + 1e-9:
            raise ValueError(f"masked {self.masked:g} and replaced {self.replaced:g} add up to more than 1")
        return self

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The mask, the first id after the tokenizer's vocabulary; none with a `mask_token`."""
        return (MASK,) if self.mask_token is None else ()

    def for_tokenizer(self, tokenizer: Tokenizer) -> MaskedLM:
        """The objective with the ids of the tokenizer's mask and of the special tokens around a text.

        Raises:
            DataError: The tokenizer has no such mask.
        """
        if self.mask_token is None:
            return self
        bound = self.model_copy()
        bound._tokens = MaskedLMTokens(
            named_token(tokenizer, self.mask_token, "data.objective.mask_token"),
            (tokenizer.prefix_ids, tokenizer.suffix_ids),
            tokenizer.eos_id,
        )
        return bound

    def required_vocab_size(self, tokenizer: Tokenizer) -> int:
        """All tokens of the tokenizer, any of which may replace another one, and the mask behind them."""
        return tokenizer.vocab_size + len(self.special_tokens)

    def tokens_per_example(self, context: int) -> int:
        """Number of tokens of the text, which are `context` with the special tokens around them.

        Raises:
            DataError: The special tokens leave no room for a text.
        """
        if self._tokens is None:
            return context
        n_around = sum(map(len, self._tokens.around))
        if n_around >= context:
            raise DataError(
                f"data.context {context}: expected more than the {n_around} special tokens around a text"
            )
        return context - n_around

    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Partly masked tokens, and targets, -1 where nothing is predicted: (n, context) int64 each."""
        tokens = self._tokens or MaskedLMTokens(mask=vocab_size)
        inputs, targets = windows.numpy().copy(), np.full(windows.shape, IGNORE_INDEX, dtype=np.int64)
        for i, row in enumerate(windows.numpy()):
            rng = np.random.default_rng([RNG_STREAM, seed, first + i])
            predictable = np.arange(len(row)) if tokens.end is None else np.flatnonzero(row != tokens.end)
            positions = predictable[self.predicted_positions(len(predictable), rng)]
            targets[i, positions] = row[positions]
            inputs[i, positions] = self.corrupt(row[positions], tokens.mask, vocab_size, rng)
        around = [np.tile(np.array(ids, dtype=np.int64), (len(windows), 1)) for ids in tokens.around]
        inputs = np.concatenate((around[0], inputs, around[1]), axis=1)
        n_around = [(0, 0), tuple(map(len, tokens.around))]
        targets = np.pad(targets, n_around, constant_values=IGNORE_INDEX)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def predicted_positions(self, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Distinct random positions to predict: the given share of `length`, rounded, but at least one."""
        return rng.permutation(length)[: max(1, round(self.share * length))]

    def corrupt(
        self, tokens: NDArray[np.int64], mask: int, vocab_size: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Replace the tokens to predict by the tokens that the model reads instead.

        Args:
            tokens: (n,) int64 ids.
            mask: id of the mask.
            vocab_size: size of the tokenizer's vocabulary, any token of which may replace another one.
            rng: random generator.

        Returns:
            (n,) int64: the mask, a random token, or the token itself, by their shares.
        """
        draw = rng.random(len(tokens))
        replacements = rng.integers(vocab_size, size=len(tokens))
        unmasked = np.where(draw < self.masked + self.replaced, replacements, tokens)
        return np.where(draw < self.masked, mask, unmasked)
