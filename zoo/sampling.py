"""Text from a model, token by token, each computed once thanks to the cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.errors import DataError, ZooError
from zoo.models import EncoderDecoder

Read = Callable[[Tensor], Tensor]
"""Tokens a model has not seen yet, (batch, time) -> the logits of the one that follows, (batch, vocab)."""


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos_id: int | None = None,
    start_id: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Continue prompts, or answer them.

    Args:
        model: a decoder, which continues the prompt, or an encoder-decoder, which reads it as its source
            and writes a target; left in the mode it was in.
        prompt: (batch, time) int64 with time >= 1, on any device.
        max_new_tokens: tokens to add to each.
        temperature: divides the logits; 0 takes the likeliest token always.
        top_k: sample among the k likeliest tokens only; None: among all.
        top_p: sample among the likeliest tokens that together have at least this probability.
        seed: of the samples; equal seeds give equal tokens on equal devices.
        eos_id: ends a continuation, which is filled up with it; generation stops when all have ended.
        start_id: what every target of an encoder-decoder starts with.
        mask: (batch, time) bool, False where the source of an encoder-decoder is padded; None: nowhere.

    Returns:
        int64 on the model's device, n <= max_new_tokens: of a decoder prompt and continuation,
        (batch, time + n); of an encoder-decoder the target without its start, (batch, n).

    Raises:
        DataError: an empty prompt.
        ZooError: a sampling setting out of range, or without effect at temperature 0 or on this model; a
            model that does not continue text.
    """
    _check(prompt, max_new_tokens, temperature, top_k, top_p)
    _check_start(model, start_id, mask)
    device = next(model.parameters()).device
    chance = torch.Generator(device).manual_seed(seed)
    prompt, mask = prompt.to(device), None if mask is None else mask.to(device)
    training = model.training
    model.eval()
    first = prompt
    if isinstance(model, EncoderDecoder) and start_id is not None:
        first = prompt.new_full((len(prompt), 1), start_id)
        read = _answering(model, prompt, mask, max_new_tokens)
    else:
        read = _continuing(model, prompt, max_new_tokens)
    pieces = [first]
    ended = torch.zeros(len(prompt), 1, dtype=torch.bool, device=device)
    while len(pieces) <= max_new_tokens and not ended.all():
        tokens = sample(read(pieces[-1]), temperature, top_k, top_p, chance)
        if eos_id is not None:
            tokens = tokens.masked_fill(ended, eos_id)
            ended |= tokens == eos_id
        pieces.append(tokens)
    model.train(training)
    return torch.cat(pieces[1:] if start_id is not None else pieces, dim=1)


def _continuing(model: nn.Module, prompt: Tensor, count: int) -> Read:
    """A decoder, with room for `count` tokens behind the prompt."""
    batch, length = prompt.shape
    cache = model.cache(batch, length + count, device=prompt.device)  # type: ignore[operator]

    def read(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens, cache)[:, -1]
        return logits

    return read


def _answering(model: EncoderDecoder, source: Tensor, mask: Tensor | None, count: int) -> Read:
    """An encoder-decoder that has read its source, with room for `count` tokens of a target."""
    memory = model.encode(source, mask)
    cache = model.cache(len(source), count, source.device)

    def read(tokens: Tensor) -> Tensor:
        logits: Tensor = model.read_out(model.decode(tokens, memory, mask, cache)[:, -1])
        return logits

    return read


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """Draw one token per row.

    Args:
        logits: (batch, vocab).
        temperature: 0 for the likeliest token.
        top_k: number of candidates, or None.
        top_p: probability the candidates have together at least, or None.
        generator: source of chance, on the device of `logits`.

    Returns:
        (batch, 1) int64.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None:
        ordered, order = logits.sort(descending=True)
        probability = ordered.softmax(-1)
        enough_before = probability.cumsum(-1) - probability >= top_p
        logits = logits.masked_fill(enough_before.scatter(-1, order, enough_before), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)


def _check(
    prompt: Tensor, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if prompt.dim() != 2 or not prompt.numel():
        raise DataError(f"prompt: expected (batch, time) with at least one token, got {tuple(prompt.shape)}")
    rules = [
        (max_new_tokens >= 1, f"max_new_tokens is {max_new_tokens}; expected at least 1"),
        (temperature >= 0, f"temperature is {temperature}; expected 0 or more"),
        (top_k is None or top_k >= 1, f"top_k is {top_k}; expected at least 1"),
        (top_p is None or 0 < top_p <= 1, f"top_p is {top_p}; expected more than 0 and at most 1"),
        (
            temperature > 0 or top_k is None,
            "top_k has no effect at temperature 0, which takes the likeliest token",
        ),
        (
            temperature > 0 or top_p is None,
            "top_p has no effect at temperature 0, which takes the likeliest token",
        ),
    ]
    for holds, problem in rules:
        if not holds:
            raise ZooError(f"generate: {problem}")


def _check_start(model: nn.Module, start_id: int | None, mask: Tensor | None) -> None:
    """Refuse an encoder, a start or a mask where no target starts, and a target without a start."""
    if not hasattr(model, "cache"):
        raise ZooError(f"generate: {type(model).__name__} does not continue text; expected a decoder")
    if isinstance(model, EncoderDecoder):
        if start_id is None:
            raise ZooError("generate: start_id is missing; the targets of an encoder-decoder start with it")
    elif start_id is not None or mask is not None:
        raise ZooError("generate: start_id and mask have no effect on a model that is no encoder-decoder")
