"""The log-likelihood of continuations given their contexts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zoo.models import LanguageModel
from zoo.utils.errors import DataError
from zoo.utils.progress import Advance, ignore

T = TypeVar("T")

Pair = tuple[Sequence[int], Sequence[int]]
"""The tokens of a context and those of its continuation."""

LogLikelihood = tuple[float, bool]
"""ln p of a continuation, and whether greedy decoding would choose each of its tokens."""


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive parts of `items`, each of at most `size` items."""
    return (items[start : start + size] for start in range(0, len(items), size))


@torch.no_grad()
def log_likelihoods(
    model: LanguageModel,
    pairs: Sequence[Pair],
    max_seq_len: int,
    batch_size: int,
    advance: Advance = ignore,
) -> list[LogLikelihood]:
    """Compute the log-likelihood of continuations.

    The model reads the last `max_seq_len` tokens of context and continuation, without the very last token.
    Pairs that need the same tokens to be read, such as the single-token choices of a question, share one row.
    Rows of similar length share a batch.

    Args:
        model: a model that continues text, in evaluation mode.
        pairs: contexts and continuations, with at least one token each.
        max_seq_len: largest number of tokens that the model reads.
        batch_size: number of rows in a batch.
        advance: a function that is called with the number of pairs done since the last call.

    Returns:
        One result for each pair, in their order, computed in float32.

    Raises:
        DataError: A context or a continuation has no tokens, or a continuation is longer than
            `max_seq_len`.
    """
    pairs_of_row: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise DataError("a context or a continuation has no token; expected at least one in each")
        if len(continuation) > max_seq_len:
            raise DataError(
                f"a continuation has {len(continuation)} tokens; expected at most {max_seq_len}, the context"
            )
        pairs_of_row[(*context, *continuation)[-max_seq_len - 1 : -1]].append(i)
    results: dict[int, LogLikelihood] = {}
    device = next(model.parameters()).device
    for rows in chunks(sorted(pairs_of_row, key=len, reverse=True), batch_size):
        tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(device)
        mask = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True)
        for row, states in zip(rows, model.hidden_states(tokens, mask=mask.to(device)), strict=True):
            scored = {i: torch.tensor(pairs[i][1], device=device) for i in pairs_of_row[row]}
            last = states[: len(row)][-max(map(len, scored.values())) :]
            results |= _score(model.lm_head(last), scored.items())
            advance(len(scored))
    return [results[i] for i in range(len(pairs))]


def _score(
    logits: Tensor, continuations: Iterable[tuple[int, Tensor]]
) -> Iterator[tuple[int, LogLikelihood]]:
    """Score continuations, (n,) each; the last token is predicted by the last of the logits (time, vocab)."""
    log_p, likeliest = logits.float().log_softmax(-1), logits.argmax(-1)
    for i, tokens in continuations:
        nats = log_p[-len(tokens) :].gather(1, tokens[:, None]).double().sum()
        yield i, (nats.item(), bool((likeliest[-len(tokens) :] == tokens).all()))
