"""Checking the `generation_kwargs` of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lm_eval.models.utils import normalize_gen_kwargs

from zoo.sampling import Sampling
from zoo.utils.errors import ZooError, did_you_mean
from zoo.utils.untyped import Json, JsonObject

MAX_GEN_TOKS = 256
"""The largest number of new tokens if a task does not set one, as in the harness for transformers."""

SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
OFF = {"top_k": 0, "repetition_penalty": 1.0}
"""The values by which transformers turns a setting off."""


@dataclass(frozen=True)
class GenerationSettings:
    """The settings of a generation by a task: its length, its end, and how tokens are drawn.

    Attributes:
        max_new_tokens: largest number of tokens to generate.
        stop: strings before which the text ends.
        sampling: how tokens are drawn.
    """

    max_new_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling

    @classmethod
    def from_task(cls, generation_kwargs: Mapping[str, Json], context: int) -> Self:
        """Read the settings of a task.

        As in transformers, settings that only matter for sampling have no effect in greedy decoding.

        Args:
            generation_kwargs: `until`, `max_gen_toks`, `do_sample`, and the fields of `Sampling` except the
                seed.
            context: largest number of tokens that the model reads.

        Raises:
            ZooError: A setting is unknown or out of range, or leaves no room for a prompt.
        """
        fields: JsonObject = dict(normalize_gen_kwargs(dict(generation_kwargs), MAX_GEN_TOKS))
        stop = tuple(word for word in fields.pop("until") if word)
        for word in stop:
            if not isinstance(word, str):
                raise ZooError(f'generation_kwargs: until has {word!r}; expected texts, such as "{word}"')
        max_new_tokens, do_sample = fields.pop("max_gen_toks"), fields.pop("do_sample")
        for name in fields:
            if name not in SAMPLING:
                known = (*SAMPLING, "until", "max_gen_toks", "do_sample")
                raise ZooError(f"generation_kwargs: no setting called '{name}'{did_you_mean(name, known)}")
        if not 1 <= max_new_tokens < context:
            raise ZooError(
                f"generation_kwargs: max_gen_toks is {max_new_tokens}, but a prompt and the generated text "
                f"have to fit the context of {context} tokens together; expected 1 to {context - 1}"
            )
        fields = {name: value for name, value in fields.items() if value != OFF.get(name)}
        if not do_sample:
            kept = {name: value for name, value in fields.items() if name == "repetition_penalty"}
            fields = {**kept, "temperature": 0.0}
        elif not fields.get("temperature"):
            raise ZooError("generation_kwargs: do_sample needs a temperature; expected more than 0")
        return cls(max_new_tokens, stop, Sampling(**fields))
