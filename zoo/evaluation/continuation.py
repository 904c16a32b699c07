"""Texts that a model writes behind prompts, each up to its end or a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.evaluation.writing import Writing
from zoo.models import LanguageModel
from zoo.sampling import left_padded, steps


def continuations(
    model: LanguageModel,
    decode: Callable[[list[int]], str],
    prompts: Sequence[Sequence[int]],
    writing: Writing,
    eos_id: int,
) -> list[str]:
    """Continue prompts together until all have ended.

    Args:
        model: continues text; one that does not support padding gets prompts of one length.
        decode: tokens -> their text.
        prompts: token ids, at least one in each.
        writing: how; the first stop string is still there, with what came in the same token.
        eos_id: the token that ends a text.

    Returns:
        One for each prompt, without it.
    """
    tokens, mask = left_padded(prompts)
    written: list[list[int]] = [[] for _ in prompts]
    texts = ["" for _ in prompts]
    ended = [False for _ in prompts]
    padding = mask if model.supports_padding else None
    for new in steps(model, tokens, writing.count, writing.sampling, eos_id=eos_id, mask=padding):
        for row, token in enumerate(new[:, 0].tolist()):
            if not ended[row]:
                written[row].append(token)
                texts[row] = decode(written[row])
                ended[row] = token == eos_id or any(word in texts[row] for word in writing.stop)
        if all(ended):
            break
    return texts


def batches(model: LanguageModel, prompts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Which prompts to continue together, by their numbers: long ones first.

    Args:
        model: one that cannot leave padding out gets prompts of one length only.
        prompts: token ids.
        size: prompts at once.
    """
    made: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
        fits = made and len(made[-1]) < size
        if fits and (model.supports_padding or len(prompts[made[-1][0]]) == len(prompts[i])):
            made[-1].append(i)
        else:
            made.append([i])
    return made
