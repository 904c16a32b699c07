"""Continuations of prompts, each up to its end or a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from zoo.evaluation.generation_settings import GenerationSettings
from zoo.models import LanguageModel
from zoo.sampling import left_padded, steps


def continuations(
    model: LanguageModel,
    decode: Callable[[list[int]], str],
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    end_ids: Collection[int],
) -> list[str]:
    """Continue prompts in one batch until all of them have ended.

    Args:
        model: a model that continues text; if it does not support padding, the prompts must have one length.
        decode: a function from tokens to their text.
        prompts: token ids, at least one in each.
        settings: the settings of the generation.
        end_ids: the tokens that end a text.

    Returns:
        The continuation of each prompt, without the prompt. It may end with a stop string and the characters
        after it that belong to the same token.
    """
    tokens, mask = left_padded(prompts)
    written: list[list[int]] = [[] for _ in prompts]
    texts = ["" for _ in prompts]
    ended = [False for _ in prompts]
    padding = mask if model.supports_padding else None
    # Never compiled, so that a text does not depend on what was generated before it.
    drawn = steps(
        model,
        tokens,
        settings.max_new_tokens,
        settings.sampling,
        eos_id=end_ids,
        mask=padding,
        compile=False,
    )
    for new in drawn:
        for row, token in enumerate(new[:, 0].tolist()):
            if not ended[row]:
                written[row].append(token)
                texts[row] = decode(written[row])
                ended[row] = token in end_ids or any(word in texts[row] for word in settings.stop)
        if all(ended):
            break
    return texts


def batches(model: LanguageModel, prompts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Divide prompts into batches.

    Args:
        model: a model that continues text; if it does not support padding, the prompts of a batch have one
            length.
        prompts: token ids.
        size: largest number of prompts in a batch.

    Returns:
        The indices of the prompts in each batch, longest prompts first.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
        has_room = groups and len(groups[-1]) < size
        if has_room and (model.supports_padding or len(prompts[groups[-1][0]]) == len(prompts[i])):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
