"""The log-likelihood of continuations, each given what stands before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zoo.models import LanguageModel
from zoo.utils.errors import DataError

Pair = tuple[Sequence[int], Sequence[int]]
"""The tokens of a context and those of its continuation."""

Answer = tuple[float, bool]
"""ln p of a continuation, and whether each of its tokens is the likeliest one at its place."""


def chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """The items, at most `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


@torch.no_grad()
def log_likelihoods(
    model: LanguageModel,
    pairs: Sequence[Pair],
    max_seq_len: int,
    batch_size: int,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Answer]:
    """Score continuations, what is read being read once.

    What a model reads is context and continuation without the last token, of which the first ones are
    left out where they are more than `max_seq_len`. Requests that read the same, such as the choices of a
    question that are single tokens, share one row; rows of about the same length share a batch.

    Args:
        model: continues text; in evaluation mode.
        pairs: at least one token in each part.
        max_seq_len: tokens that the model reads at most.
        batch_size: rows at once.
        progress: told how many more pairs are done.

    Returns:
        One for each pair, in their order; computed in float32.

    Raises:
        DataError: a part without tokens, or a continuation longer than `max_seq_len`.
    """
    users: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise DataError("a context or a continuation has no token; expected at least one in each")
        if len(continuation) > max_seq_len:
            raise DataError(
                f"a continuation has {len(continuation)} tokens; expected at most {max_seq_len}, the context"
            )
        users[(*context, *continuation)[-max_seq_len - 1 : -1]].append(i)
    answers: dict[int, Answer] = {}
    device = next(model.parameters()).device
    for rows in chunks(sorted(users, key=len, reverse=True), batch_size):
        tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(device)
        for row, states in zip(rows, model.hidden_states(tokens), strict=True):
            scored = {i: torch.tensor(pairs[i][1], device=device) for i in users[row]}
            last = states[: len(row)][-max(map(len, scored.values())) :]
            answers |= _score(model.lm_head(last), scored.items())
            progress(len(scored))
    return [answers[i] for i in range(len(pairs))]


def _score(logits: Tensor, continuations: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Answer]]:
    """Continuations (n,) that end where the logits (time, vocab) do, each with its number."""
    log_p, likeliest = logits.float().log_softmax(-1), logits.argmax(-1)
    for i, tokens in continuations:
        nats = log_p[-len(tokens) :].gather(1, tokens[:, None]).double().sum()
        yield i, (nats.item(), bool((likeliest[-len(tokens) :] == tokens).all()))
