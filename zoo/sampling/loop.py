"""The loop of generation: read what is new, draw a token, and again."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from zoo.models import Decoder, EncoderDecoder
from zoo.nn.prepared import prepared
from zoo.sampling.compiled import Read, compiled, roomy
from zoo.sampling.draw import sample
from zoo.sampling.padding import padding_of
from zoo.sampling.repetition import Repetition
from zoo.sampling.settings import Sampling
from zoo.utils.errors import DataError, ZooError


def generate(
    model: nn.Module,
    prompt: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int = 0,
    eos_id: int | None = None,
    start_id: int | None = None,
    mask: Tensor | None = None,
    compile: bool = False,
) -> Tensor:
    """Continue prompts, or answer them.

    Args:
        model: a decoder, which continues the prompt, or an encoder-decoder, which reads it as its source
            and writes a target; left in the mode it was in.
        prompt: (batch, time) int64 with time >= 1, on any device; `left_padded` makes one of prompts of
            different lengths.
        max_new_tokens: tokens to add to each.
        temperature: see `Sampling`, as for the next four.
        top_k: likewise.
        top_p: likewise.
        repetition_penalty: likewise.
        seed: likewise.
        eos_id: ends a continuation, which is filled up with it; generation stops when all have ended.
        start_id: what every target of an encoder-decoder starts with.
        mask: (batch, time) bool, False where the prompt is padded: in front of it for a decoder, anywhere
            in the source of an encoder-decoder; None: nowhere.
        compile: read all tokens but the first by a step that `torch.compile` makes once for a model, a
            number of prompts and a length: worth it from about a thousand tokens on.

    Returns:
        int64 on the model's device, n <= max_new_tokens: of a decoder prompt and continuation,
        (batch, time + n); of an encoder-decoder the target without its start, (batch, n).

    Raises:
        DataError: an empty prompt, or a mask that does not fit it.
        ZooError: a sampling setting out of range, or without effect at temperature 0 or on this model; a
            model that does not continue text, or whose logits are no numbers; a step that cannot be compiled.
    """
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    drawn = steps(
        model,
        prompt,
        max_new_tokens,
        sampling,
        eos_id=eos_id,
        start_id=start_id,
        mask=mask,
        compile=compile,
    )
    pieces = list(drawn)
    if start_id is None:
        pieces.insert(0, prompt.to(pieces[0].device))
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def steps(
    model: nn.Module,
    prompt: Tensor,
    max_new_tokens: int,
    sampling: Sampling,
    *,
    eos_id: int | None = None,
    start_id: int | None = None,
    mask: Tensor | None = None,
    compile: bool = False,
) -> Iterator[Tensor]:
    """What `generate` adds, as it is made; the arguments are the same.

    Until the last token is drawn or the iterator closed the model is in evaluation mode, and changes of
    its weights go unseen.

    Yields:
        (batch, 1) int64, at most `max_new_tokens` times.
    """
    _check(model, prompt, max_new_tokens, start_id, mask)
    device = next(model.parameters()).device
    chance = torch.Generator(device).manual_seed(sampling.seed)
    prompt, mask = prompt.to(device), None if mask is None else mask.to(device)
    penalise = None if sampling.repetition_penalty is None else Repetition(sampling.repetition_penalty)
    with prepared(model, len(prompt)):
        if isinstance(model, EncoderDecoder) and start_id is not None:
            read = _answering(model, prompt, mask, max_new_tokens, compile)
            tokens, mask = prompt.new_full((len(prompt), 1), start_id), None
        else:
            read = _continuing(model, prompt, mask, max_new_tokens, compile)
            tokens = prompt
        ended = torch.zeros(len(prompt), 1, dtype=torch.bool, device=device)
        for number in range(max_new_tokens):
            logits = read(tokens)
            if number == 0 and not logits.isfinite().all():
                raise ZooError("generate: the model's logits are not finite; its weights are damaged")
            if penalise:
                logits, mask = penalise(logits, tokens, mask), None
            tokens = sample(logits, sampling.temperature, sampling.top_k, sampling.top_p, chance)
            if eos_id is not None:
                tokens = tokens.masked_fill(ended, eos_id)
                ended |= tokens == eos_id
            yield tokens
            if ended.all():
                return


def _continuing(model: nn.Module, prompt: Tensor, mask: Tensor | None, count: int, compile: bool) -> Read:
    """A decoder, with room for `count` tokens behind the prompt."""
    batch, length = prompt.shape
    padding = {} if mask is None else {"padding": padding_of(mask, prompt)}
    fixed = roomy(length + count, model.config.max_seq_len)  # type: ignore[union-attr, arg-type]
    room = fixed if compile else length + count
    cache = model.cache(batch, room, device=prompt.device, **padding)  # type: ignore[operator]

    def read(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens, cache, last=True)[:, -1]
        return logits

    return compiled(read, cache) if compile else read


def _answering(model: EncoderDecoder, source: Tensor, mask: Tensor | None, count: int, compile: bool) -> Read:
    """An encoder-decoder that has read its source, with room for `count` tokens of a target."""
    memory = model.encode(source, mask)
    cache = model.cache(len(source), roomy(count) if compile else count, source.device)

    def read(tokens: Tensor) -> Tensor:
        logits: Tensor = model.read_out(model.decode(tokens, memory, mask, cache)[:, -1])
        return logits

    return compiled(read, cache) if compile else read


def _check(
    model: nn.Module, prompt: Tensor, max_new_tokens: int, start_id: int | None, mask: Tensor | None
) -> None:
    """Refuse an encoder, a start where no target starts, and a mask that a model cannot use."""
    if prompt.dim() != 2 or not prompt.numel():
        raise DataError(f"prompt: expected (batch, time) with at least one token, got {tuple(prompt.shape)}")
    if max_new_tokens < 1:
        raise ZooError(f"generate: max_new_tokens is {max_new_tokens}; expected at least 1")
    if not hasattr(model, "cache"):
        raise ZooError(f"generate: {type(model).__name__} does not continue text; expected a decoder")
    if isinstance(model, EncoderDecoder):
        if start_id is None:
            raise ZooError("generate: start_id is missing; the targets of an encoder-decoder start with it")
    elif start_id is not None:
        raise ZooError("generate: start_id has no effect on a model that is no encoder-decoder")
    elif mask is not None and not isinstance(model, Decoder):
        raise ZooError(
            f"generate: {type(model).__name__} cannot leave padding out; expected prompts of one length, "
            "without a mask"
        )
