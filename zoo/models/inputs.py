"""The inputs of a language model: checks of token ids, masks, and tokens for trying a model out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import DataError


def check_tokens(tokens: Tensor) -> None:
    """Check that `tokens` is a (batch, time) tensor of token ids.

    Raises:
        DataError: `tokens` has another shape or dtype.
    """
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise DataError(
            f"tokens: expected (batch, time) integers, got shape {tuple(tokens.shape)} of {tokens.dtype}"
        )


def check_token_ids(tokens: Tensor, vocab_size: int, name: str = "tokens") -> None:
    """Check that every token is in the vocabulary; a GPU is waited for.

    Args:
        tokens: token ids of any shape, at least one.
        vocab_size: number of tokens in the vocabulary.
        name: the argument that an error names.

    Raises:
        DataError: A token id is negative, or `vocab_size` or larger.
    """
    least, largest = int(tokens.min()), int(tokens.max())
    if least < 0 or largest >= vocab_size:
        wrong = least if least < 0 else largest
        raise DataError(f"{name}: id {wrong} is not in the vocabulary; expected 0 to {vocab_size - 1}")


def check_mask(mask: Tensor | None, tokens: Tensor) -> None:
    """Check that `mask` is a bool tensor of the shape of `tokens`, or None.

    Raises:
        DataError: `mask` has another shape or dtype.
    """
    if mask is not None and (mask.shape != tokens.shape or mask.dtype != torch.bool):
        raise DataError(
            f"mask: expected bool {tuple(tokens.shape)} like the tokens, got {mask.dtype} {tuple(mask.shape)}"
        )


def key_mask(mask: Tensor | None) -> Tensor | None:
    """The mask of keys for all heads and queries: (batch, keys) bool -> (batch, 1, 1, keys)."""
    return None if mask is None else mask[:, None, None]


def mask_in(batch: Sequence[Tensor]) -> Tensor | None:
    """The mask of a batch (tokens, segments, mask, targets); None if it has no mask."""
    return batch[2] if len(batch) > 3 else None


def up_to_last_target(targets: Tensor) -> Tensor:
    """The mask of the rows of a causal model: False behind the last target of a row.

    No target depends on the positions behind it. They are padding, or what a chat template puts behind the
    last answer.

    Args:
        targets: (batch, time) int64, `IGNORE_INDEX` where nothing is predicted.

    Returns:
        (batch, time) bool; a row without targets is False everywhere.
    """
    left = (targets != IGNORE_INDEX).flip(1).cumsum(1).flip(1)  # number of targets from here on
    return left > 0


def check_documents(documents: Tensor, tokens: Tensor) -> None:
    """Check that `documents` numbers the document of every token.

    Raises:
        DataError: `documents` has another shape than the tokens, or its dtype is not an integer type.
    """
    if documents.shape != tokens.shape or documents.dtype not in (torch.int64, torch.int32):
        raise DataError(
            f"documents: expected integers {tuple(tokens.shape)} like the tokens, "
            f"got {documents.dtype} {tuple(documents.shape)}"
        )


def left_padding(mask: Tensor, tokens: Tensor) -> Tensor | None:
    """Count the padding in front of each text.

    Args:
        mask: (batch, time) bool, False for padding.
        tokens: (batch, time).

    Returns:
        (batch,) int64, or None if there is no padding anywhere.

    Raises:
        DataError: `mask` has another shape or dtype, or there is padding inside or after a text.
    """
    check_mask(mask, tokens)
    wrong = ~mask[:, -1] | (mask[:, :-1] & ~mask[:, 1:]).any(1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(f"mask: row {row} has padding inside or after its text; expected it in front only")
    return None if mask.all() else (~mask).sum(1)


def consecutive_tokens(vocab_size: int, batch: int, time: int) -> tuple[Tensor, Tensor]:
    """0, 1, 2, ... as tokens, and for each the token that follows: int64 (batch, time) each, on the CPU."""
    tokens = torch.arange(batch * (time + 1), device="cpu").reshape(batch, time + 1) % vocab_size
    return tokens[:, :-1], tokens[:, 1:]
