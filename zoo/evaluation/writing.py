"""How a task wants text to be written: its `generation_kwargs`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lm_eval.models.utils import normalize_gen_kwargs

from zoo.sampling import Sampling
from zoo.utils.errors import ZooError, did_you_mean

MAX_GEN_TOKS = 256
"""Tokens to write where a task does not say, as for the models of transformers."""

DRAWING = ("temperature", "top_k", "top_p", "repetition_penalty")
OFF = {"top_k": 0, "repetition_penalty": 1.0}
"""Values with which transformers turns a setting off."""


@dataclass(frozen=True)
class Writing:
    """The settings of a text.

    Attributes:
        count: tokens to write at most.
        stop: strings before which the text ends.
        sampling: how tokens are drawn.
    """

    count: int
    stop: tuple[str, ...]
    sampling: Sampling

    @classmethod
    def of(cls, given: Mapping[str, Any], context: int) -> Self:
        """Read a task's settings.

        As with transformers, what only matters where chance decides is left out where it does not.

        Args:
            given: `until`, `max_gen_toks`, `do_sample`, and what `Sampling` knows but the seed.
            context: tokens that the model reads at most.

        Raises:
            ZooError: an unknown setting, one out of range, or no room for a prompt.
        """
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), MAX_GEN_TOKS))
        stop = tuple(word for word in wanted.pop("until") if word)
        count, drawn = wanted.pop("max_gen_toks"), wanted.pop("do_sample")
        for name in wanted:
            if name not in DRAWING:
                known = (*DRAWING, "until", "max_gen_toks", "do_sample")
                raise ZooError(f"generation_kwargs: no setting called '{name}'{did_you_mean(name, known)}")
        if not 1 <= count < context:
            raise ZooError(
                f"generation_kwargs: max_gen_toks is {count}, but a prompt and what is written have to fit "
                f"the context of {context} tokens together; expected 1 to {context - 1}"
            )
        fields = {name: value for name, value in wanted.items() if value != OFF.get(name)}
        if not drawn:
            kept = {name: value for name, value in fields.items() if name == "repetition_penalty"}
            fields = {**kept, "temperature": 0.0}
        elif not fields.get("temperature"):
            raise ZooError("generation_kwargs: do_sample needs a temperature; expected more than 0")
        return cls(count, stop, Sampling(**fields))
