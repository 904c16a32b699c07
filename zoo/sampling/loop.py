"""The loop of generation: read the new tokens, draw the next one, and repeat."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import index

import torch
from torch import Tensor, nn

from zoo.models import LanguageModel
from zoo.models.inputs import check_token_ids
from zoo.nn.kv_cache import rounded_up
from zoo.nn.prepared import prepared
from zoo.sampling.captured import CUDAGraphs, captured
from zoo.sampling.compiled import compiled
from zoo.sampling.draw import sample
from zoo.sampling.fixed import CAPACITY_MULTIPLE, fixed
from zoo.sampling.payoff import step_count
from zoo.sampling.repetition import Repetition
from zoo.sampling.settings import Sampling, require_new_tokens
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
    seed: int | None = None,
    eos_id: int | Collection[int] | None = None,
    start_id: int | None = None,
    mask: Tensor | None = None,
    compile: bool | None = None,
    cuda_graph: bool = False,
) -> Tensor:
    """Continue prompts, or answer them.

    Args:
        model: a `LanguageModel` that writes text: a decoder continues the prompt, an encoder-decoder reads
            it as its source and writes a target. Its mode (training or evaluation) is restored at the end.
        prompt: (batch, time) int64 with time >= 1, on any device; `left_padded` batches prompts of different
            lengths.
        max_new_tokens: largest number of tokens to add to each prompt.
        temperature: divisor of the logits; 0 always takes the most probable token.
        top_k: number of most probable tokens to draw from; None: all tokens.
        top_p: total probability of the most probable tokens to draw from; None: all tokens.
        repetition_penalty: above 1, tokens that are in the text already become less probable, see `Sampling`;
            None: no penalty.
        seed: seed of the random numbers; equal seeds give equal tokens on equal devices. None: 0.
        eos_id: the token, or the tokens, that end a text. A text that has ended is padded with the token that
            has ended it, and generation stops when all texts have ended.
        start_id: the token that every target of an encoder-decoder starts with.
        mask: (batch, time) bool, False where the prompt is padded: in front of the prompt of a decoder,
            anywhere in the source of an encoder-decoder; None: there is no padding.
        compile: whether to compile the step from one token to the next with `torch.compile`. A compiled step
            serves one model, number of prompts and length. None: on a CPU, from the call on with which this
            process is sure to have drawn 2,048 tokens by steps of one shape; a call that may end before
            `max_new_tokens` counts afterwards. The texts of a compiled step may differ from those of a plain
            one, because both round differently.
        cuda_graph: whether a GPU replays the step from one token to the next, compiled or not, as a CUDA
            graph. This option has not been run on a GPU yet.

    Returns:
        int64 on the model's device, with n <= max_new_tokens: the prompt and its continuation,
        (batch, time + n), or the target of an encoder-decoder without its start token, (batch, n).

    Raises:
        DataError: The prompt is no tensor or is empty, a token of the prompt, `eos_id` or `start_id` is no
            whole number or outside the vocabulary, `mask` does not fit the prompt, or there are more tokens
            than the model's `max_seq_len`.
        ZooError: A sampling setting is out of range, or has no effect at temperature 0 or on this model; the
            model writes no text, or its logits are not finite; or the step cannot be compiled or captured.
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
        cuda_graph=cuda_graph,
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
    eos_id: int | Collection[int] | None = None,
    start_id: int | None = None,
    mask: Tensor | None = None,
    compile: bool | None = None,
    cuda_graph: bool = False,
) -> Iterator[Tensor]:
    """Generate token by token; the arguments and errors are those of `generate`.

    Until the last token is drawn or the iterator is closed, the model is in evaluation mode, and changes of
    its weights have no effect on the tokens.

    Yields:
        (batch, 1) int64, at most `max_new_tokens` times.
    """
    if not isinstance(prompt, Tensor):
        raise DataError(f"prompt: expected a tensor (batch, time), got a {type(prompt).__name__}")
    if prompt.dim() != 2 or not prompt.numel():
        raise DataError(f"prompt: expected (batch, time) with at least one token, got {tuple(prompt.shape)}")
    if not isinstance(mask, Tensor | None):
        raise DataError(f"mask: expected a tensor (batch, time), got a {type(mask).__name__}")
    require_new_tokens(max_new_tokens)
    if not isinstance(model, LanguageModel):
        raise ZooError(f"generate: {type(model).__name__} does not continue text; expected a decoder")
    vocab_size = model.config.vocab_size
    check_token_ids(prompt, vocab_size)
    sampling.require_effect(vocab_size)
    ends = _token_ids(eos_id, vocab_size, "eos_id")
    _token_ids(start_id, vocab_size, "start_id")
    device = next(model.parameters()).device
    graphs = CUDAGraphs(device) if cuda_graph else None
    generator = torch.Generator(device).manual_seed(int(sampling.seed or 0))
    prompt, mask = prompt.to(device), None if mask is None else mask.to(device)
    penalise = None if sampling.repetition_penalty is None else Repetition(sampling.repetition_penalty)
    continued = prompt.shape[1] - 1 if start_id is None else 0  # the last token is not read
    capacity = rounded_up(continued + max_new_tokens, CAPACITY_MULTIPLE)
    past = step_count(model, prompt, capacity, start_id is not None, mask is not None)
    end_ids = torch.tensor(ends, dtype=torch.int64, device=device)
    certain = 0 if ends else max_new_tokens
    compiles = past.compilation_pays(device, certain) if compile is None else compile
    with prepared(model, len(prompt), compiled=compiles):
        start = model.start_generation(
            prompt, max_new_tokens, mask=mask, start_id=start_id, multiple_of=CAPACITY_MULTIPLE
        )
        read = step = start.read
        if compiles:
            step = compiled(step, past, required=compile is not None)
        if graphs is not None:
            step = captured(step, graphs)
        if step is not start.read:
            read = fixed(start.read, start.cache, step)
        tokens, mask = start.tokens, start.mask
        ended = torch.zeros(len(prompt), 1, dtype=torch.bool, device=device)
        for number in range(max_new_tokens):
            logits = read(tokens)
            if number == 0 and not logits.isfinite().all():
                raise ZooError("generate: the model's logits are not finite; its weights are damaged")
            if penalise:
                logits, mask = penalise(logits, tokens, mask), None
            drawn = sample(logits, sampling.temperature, sampling.top_k, sampling.top_p, generator)
            past.drawn += 1
            if ends:
                drawn = torch.where(ended, tokens[:, -1:], drawn)
                ended |= torch.isin(drawn, end_ids)
            tokens = drawn
            yield tokens
            if ends and ended.all():  # the host waits for the GPU here
                return


def _token_ids(given: int | Collection[int] | None, vocab_size: int, name: str) -> tuple[int, ...]:
    """The ids of an argument, which is one id, several or None.

    Raises:
        DataError: It is something else, or an id is not in the vocabulary.
    """
    if given is None:
        return ()
    try:
        several = given.flatten().tolist() if isinstance(given, Tensor) else given
        ids = tuple(map(index, several if isinstance(several, Collection) else (several,)))
    except TypeError as error:
        raise DataError(f"{name}: {given!r}; expected a token id, or several") from error
    if ids:
        check_token_ids(torch.tensor(ids), vocab_size, name)
    return ids
