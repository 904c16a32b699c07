"""Changes of RoPE's frequencies for contexts that are longer than those of the training."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.config.registry import Config
from zoo.nn.positions import LONGEST

Factors = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]


class FrequencyScaling(Config):
    """A change of the frequencies, and of the magnitude of rotated queries and keys.

    Attributes:
        by_length: whether the frequencies depend on the length of the sequence.
    """

    by_length: ClassVar[bool] = False

    def __call__(self, frequency: Tensor, base: float, length: int | Tensor) -> Tensor:
        """Change the frequencies.

        Args:
            frequency: (r / 2,) float32, base^(-2 i / r), r being the number of entries that are rotated.
            base: the base of the frequencies.
            length: number of positions of the longest sequence that is rotated alike, or int64 (..., time)
                of the document of each token.

        Returns:
            (r / 2,); with a length for each token (..., time, r / 2) if it is `by_length`.
        """
        raise NotImplementedError

    @property
    def magnitude(self) -> float:
        """The factor of rotated queries and keys."""
        return 1.0

    def check(self, rotated: int, base: float) -> None:
        """Check that the scaling fits the rotations.

        Args:
            rotated: number of entries of a head that are rotated.
            base: the base of the frequencies.

        Raises:
            ValueError: The scaling has factors for another number of pairs, or has no use for the base.
        """


class LinearScaling(FrequencyScaling):
    """Position interpolation: frequencies divided by a factor (Chen et al. 2023, arXiv:2306.15595)."""

    type: Literal["linear"] = "linear"
    factor: float = Field(gt=0, description="divides every frequency")

    def __call__(self, frequency: Tensor, base: float, length: int | Tensor) -> Tensor:
        """(r / 2,) -> (r / 2,), see `FrequencyScaling`."""
        return frequency / self.factor


class TurnsScaling(FrequencyScaling):
    """Slow rotations become slower, fast ones stay, with linear interpolation between them.

    A rotation is slow or fast by its number of turns within the context of the original training.
    """

    low_turns: float = Field(1.0, gt=0, description="turns up to which a rotation is slow")
    high_turns: float = Field(gt=0, description="turns from which a rotation is fast")

    @model_validator(mode="after")
    def _low_below_high(self) -> Self:
        if self.low_turns >= self.high_turns:
            raise ValueError(f"low_turns {self.low_turns} is not below high_turns {self.high_turns}")
        return self


class Llama3Scaling(TurnsScaling):
    """Llama 3.1: the interpolation is linear in the number of turns."""

    type: Literal["llama3"] = "llama3"
    factor: float = Field(gt=0, description="divides the frequencies of slow rotations")
    high_turns: float = Field(4.0, gt=0, description="turns from which a rotation is fast")
    context: int = Field(
        8192, gt=0, le=LONGEST, description="tokens of the context in which turns are counted"
    )

    def __call__(self, frequency: Tensor, base: float, length: int | Tensor) -> Tensor:
        """(r / 2,) -> (r / 2,), see `FrequencyScaling`."""
        turns = self.context * frequency / (2 * math.pi)
        fast = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return (1 - fast) * frequency / self.factor + fast * frequency


class YarnScaling(TurnsScaling):
    """YaRN: linear in the number of the pair, and scores grow (Peng et al. 2023, arXiv:2309.00071).

    Section 3.2 calls `low_turns` alpha and `high_turns` beta. Queries and keys are multiplied by the root of
    what section 3.4 calls 1 / t.
    """

    type: Literal["yarn"] = "yarn"
    factor: float = Field(gt=0, description="divides the frequencies of slow rotations")
    high_turns: float = Field(32.0, gt=0, description="turns from which a rotation is fast")
    context: int = Field(
        gt=0, le=LONGEST, description="tokens of the original context, in which turns are counted"
    )
    attention_factor: float | None = Field(
        None, gt=0, description="factor of queries and keys; null: 0.1 ln(factor) + 1, and 1 below factor 1"
    )
    whole_pairs: bool = Field(
        True, description="round outwards to whole pairs where the interpolation begins and ends"
    )

    def __call__(self, frequency: Tensor, base: float, length: int | Tensor) -> Tensor:
        """(r / 2,) -> (r / 2,), see `FrequencyScaling`."""
        rotated = 2 * len(frequency)
        first, last = (self._pair(turns, base, rotated) for turns in (self.high_turns, self.low_turns))
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotated - 1)
        width = last - first or 0.001  # both are one pair: a step
        slow = ((torch.arange(len(frequency), device=frequency.device) - first) / width).clamp(0, 1)
        return slow * frequency / self.factor + (1 - slow) * frequency

    def check(self, rotated: int, base: float) -> None:
        """Check that the pairs turn slower and slower, so that the slow ones are the last."""
        if base <= 1:
            raise ValueError(f"rope_base {base}: expected more than 1 with rope_scaling of type yarn")

    def _pair(self, turns: float, base: float, rotated: int) -> float:
        """The index of the pair that makes `turns` turns within the context, as a real number."""
        return rotated * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(base))

    @property
    def magnitude(self) -> float:
        """The attention factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0


class LongRopeScaling(FrequencyScaling):
    """LongRoPE: a factor of its own for every frequency (Ding et al. 2024, arXiv:2402.13753).

    There are two lists of factors, for sequences within the original context and for longer ones. A sequence
    that is generated with a cache is as long as the cache allows, so that all its keys are rotated alike.
    """

    by_length: ClassVar[bool] = True

    type: Literal["longrope"] = "longrope"
    short: Factors = Field(description="divide the frequencies in sequences of up to `context` tokens")
    long: Factors = Field(description="divide the frequencies in longer sequences")
    context: int = Field(gt=1, le=LONGEST, description="tokens of the original context")
    factor: float = Field(gt=0, description="the longest sequence over `context`")
    attention_factor: float | None = Field(
        None,
        gt=0,
        description="factor of queries and keys; null: sqrt(1 + ln(factor) / ln(context)), 1 below factor 1",
    )

    def check(self, rotated: int, base: float) -> None:
        """Check that there is a factor for each pair."""
        for name, factors in (("short", self.short), ("long", self.long)):
            if len(factors) != rotated // 2:
                raise ValueError(
                    f"rope_scaling.{name} has {len(factors)} factors, but {rotated // 2} pairs are rotated"
                )

    def __call__(self, frequency: Tensor, base: float, length: int | Tensor) -> Tensor:
        """(r / 2,) -> (r / 2,) or (..., time, r / 2), see `FrequencyScaling`."""
        short, long = (frequency / frequency.new_tensor(factors) for factors in (self.short, self.long))
        if isinstance(length, Tensor):
            return torch.where(length.unsqueeze(-1) > self.context, long, short)
        return long if length > self.context else short

    @property
    def magnitude(self) -> float:
        """The attention factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.context)) if self.factor > 1 else 1.0


RopeScaling = Annotated[
    LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling, Field(discriminator="type")
]
