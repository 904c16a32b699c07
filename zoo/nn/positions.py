"""Positions of tokens, and which of them a query sees."""

from __future__ import annotations

import torch
from torch import Tensor

LONGEST = 2**31 - 1
"""The longest context, window or distance in tokens that a configuration may name."""

CachePosition = int | Tensor
"""Number of tokens in a cache; a 0-dim int64 tensor if one compiled step serves every number."""


def positions(start: CachePosition, time: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """Positions of tokens, counted from the first token of each text; padding has position 0.

    Args:
        start: number of tokens before the first one, padding included.
        time: number of tokens.
        device: device of the result.
        padding: (batch,) int64, number of padding tokens in front of each text; None: there is no padding.

    Returns:
        int64, (time,) or, with padding, (batch, time).
    """
    counted = torch.arange(time, device=device) + start
    return counted if padding is None else (counted - padding[:, None]).clamp(min=0)


def document_positions(documents: Tensor) -> Tensor:
    """Positions of tokens, counted from the first token of each document.

    Args:
        documents: (batch, time) integers, the number of each token's document; a document is one run of
            tokens.

    Returns:
        int64 (batch, time).
    """
    counted = torch.arange(documents.shape[1], device=documents.device)
    return counted - torch.where(_begins(documents), counted, 0).cummax(1).values


def document_lengths(documents: Tensor) -> Tensor:
    """The number of tokens of each token's document; shapes and dtypes are those of `document_positions`."""
    number = _begins(documents).cumsum(1) - 1
    counts = torch.zeros_like(number).scatter_add_(1, number, torch.ones_like(number))
    return counts.gather(1, number)


def _begins(documents: Tensor) -> Tensor:
    """Where a document begins, (batch, time) bool."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins


def visible(
    start: CachePosition, time: int, keys: int, device: torch.device, window: int | None = None
) -> Tensor:
    """Which of the keys 0, 1, ... the queries at `start`, start + 1, ... see: those up to their own.

    Args:
        start: position of the first query.
        time: number of queries.
        keys: number of keys.
        device: where the result lives.
        window: how many keys a query sees, its own included; None: all.

    Returns:
        (time, keys) bool.
    """
    key, query = torch.arange(keys, device=device), positions(start, time, device)[:, None]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def seen_keys(
    time: int,
    keys: int,
    device: torch.device,
    position: CachePosition,
    padding: Tensor | None,
    window: int | None,
) -> Tensor:
    """Which keys each query sees; padding sees padding alone.

    Args:
        time: number of queries.
        keys: number of keys.
        device: where the result lives.
        position: number of keys before the key of the first query.
        padding: (batch,) int64, number of keys in front that are padding; None: there is no padding.
        window: how many keys a query sees, its own included; None: all up to its own.

    Returns:
        (1 or batch, time, keys) bool.
    """
    seen = visible(position, time, keys, device, window)[None]
    if padding is None:
        return seen
    padded_keys, padded_queries = (
        positions(start, count, device) < padding[:, None] for start, count in ((0, keys), (position, time))
    )
    # Padding sees padding, because a softmax over no scores would be NaN.
    return seen & (padded_queries[:, :, None] == padded_keys[:, None])
