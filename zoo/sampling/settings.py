"""The settings of sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Self

import torch

from zoo.utils.errors import ZooError

LEAST = torch.finfo(torch.float32).tiny
"""The smallest divisor of logits: a float32 below is less exact, or 0."""

OPTIONAL = {"top_k": True, "top_p": False, "repetition_penalty": False, "seed": True}
"""The settings that may be None, and whether each of them is a whole number."""


@dataclass(frozen=True)
class Sampling:
    """The settings by which the next token is drawn from the logits.

    Attributes:
        temperature: divisor of the logits; 0 always takes the most probable token.
        top_k: number of most probable tokens to draw from; None: all tokens.
        top_p: total probability of the most probable tokens to draw from; None: all tokens.
        repetition_penalty: above 1, tokens that are in the text already, including the prompt of a decoder,
            become less probable (Keskar et al. 2019, arXiv:1909.05858, section 4.1); None: no penalty.
        seed: seed of the random numbers; equal seeds give equal tokens on equal devices. None: 0.

    Raises:
        ZooError: A setting is out of range or has no effect.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_number("temperature", self.temperature)
        for name, whole in OPTIONAL.items():
            if getattr(self, name) is not None:
                _require_number(name, getattr(self, name), whole)
        penalty, greedy = self.repetition_penalty, self.temperature == 0
        rules = [
            (
                self.seed is None or 0 <= self.seed < 2**63,
                f"seed is {self.seed}; expected 0 or more, and less than 2^63",
            ),
            (self.temperature >= 0, f"temperature is {self.temperature}; expected 0 or more"),
            (self.top_k is None or self.top_k >= 1, f"top_k is {self.top_k}; expected at least 1"),
            (
                self.top_p is None or 0 < self.top_p <= 1,
                f"top_p is {self.top_p}; expected more than 0 and at most 1",
            ),
            (penalty is None or penalty > 0, f"repetition_penalty is {penalty}; expected more than 0"),
            *(
                (
                    not value or value >= LEAST,
                    f"{name} is {value}; expected at least {LEAST:.3g}, because float32 divides by it",
                )
                for name, value in (("temperature", self.temperature), ("repetition_penalty", penalty))
            ),
            (penalty != 1, "repetition_penalty has no effect at 1; leave it out"),
            *(
                (
                    not greedy or value is None,
                    f"{name} has no effect at temperature 0, which takes the likeliest token",
                )
                for name, value in (("top_k", self.top_k), ("top_p", self.top_p), ("seed", self.seed))
            ),
        ]
        for holds, problem in rules:
            if not holds:
                raise ZooError(f"generate: {problem}")

    def require_effect(self, vocab_size: int) -> None:
        """Refuse a `top_k` that leaves out no token of a vocabulary.

        Raises:
            ZooError: `top_k` is the number of tokens or more.
        """
        if self.top_k is not None and self.top_k >= vocab_size:
            raise ZooError(
                f"generate: top_k is {self.top_k}, which has no effect with {vocab_size} tokens in the "
                "vocabulary; expected fewer"
            )

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed, which has no effect at temperature 0."""
        return self if self.temperature == 0 else replace(self, seed=seed)


def require_new_tokens(max_new_tokens: int) -> None:
    """Refuse a text without any new token.

    Raises:
        ZooError: The number is below 1, or no whole number.
    """
    _require_number("max_new_tokens", max_new_tokens, whole=True)
    if max_new_tokens < 1:
        raise ZooError(f"generate: max_new_tokens is {max_new_tokens}; expected at least 1")


def _require_number(name: str, value: object, whole: bool = False) -> None:
    """Refuse a setting that is no number, which may be one of numpy.

    Raises:
        ZooError: It has another type.
    """
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        expected = "a whole number" if whole else "a number"
        raise ZooError(f"generate: {name} is {value!r}; expected {expected}")
