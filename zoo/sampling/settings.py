"""How the next token is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.utils.errors import ZooError


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling, checked.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token always.
        top_k: sample among the k likeliest tokens only; None: among all.
        top_p: sample among the likeliest tokens that together have at least this probability.
        repetition_penalty: makes the tokens that are there already, prompts of decoders included, less
            likely where it is above 1 (Keskar et al. 2019, arXiv:1909.05858, section 4.1); None: does not.
        seed: of the samples; equal seeds give equal tokens on equal devices.

    Raises:
        ZooError: a setting out of range or without effect.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        penalty, greedy = self.repetition_penalty, self.temperature == 0
        rules = [
            (self.temperature >= 0, f"temperature is {self.temperature}; expected 0 or more"),
            (self.top_k is None or self.top_k >= 1, f"top_k is {self.top_k}; expected at least 1"),
            (
                self.top_p is None or 0 < self.top_p <= 1,
                f"top_p is {self.top_p}; expected more than 0 and at most 1",
            ),
            (penalty is None or penalty > 0, f"repetition_penalty is {penalty}; expected more than 0"),
            (penalty != 1, "repetition_penalty has no effect at 1; leave it out"),
            *(
                (
                    not greedy or value is None,
                    f"{name} has no effect at temperature 0, which takes the likeliest token",
                )
                for name, value in (("top_k", self.top_k), ("top_p", self.top_p))
            ),
        ]
        for holds, problem in rules:
            if not holds:
                raise ZooError(f"generate: {problem}")
