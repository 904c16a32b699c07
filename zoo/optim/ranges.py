"""The values that are valid for the options of a parameter group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol

import torch
from torch import Tensor

from zoo.optim.param_group import ParamGroup
from zoo.utils.errors import ConfigError


class Valid(Protocol):
    """The valid values of an option."""

    @property
    def expected(self) -> str:
        """The words for the values in an error message."""

    def __contains__(self, value: object) -> bool: ...


@dataclass(frozen=True)
class Numbers:
    """Numbers from a lower bound up to an upper one that is excluded.

    Attributes:
        expected: The words for the values in an error message.
        high: The upper bound.
        low: The lower bound.
        without_zero: Whether 0 is excluded as well.
        whole: Whether fractions are excluded.
        others: Further values that are valid.
        count: How many numbers a value consists of; None: a value is a number.
    """

    expected: str
    high: float = math.inf
    low: float = 0
    without_zero: bool = False
    whole: bool = False
    others: tuple[object, ...] = ()
    count: int | None = None

    def __contains__(self, value: object) -> bool:
        if self.count is None:
            # A tensor or an array would be compared entry by entry.
            return self._has(value) or (isinstance(value, str | Real | None) and value in self.others)
        return isinstance(value, tuple | list) and len(value) == self.count and all(map(self._has, value))

    def _has(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real | Tensor):
            return False
        try:
            number = float(value)
        except (OverflowError, RuntimeError, ValueError):  # a huge integer; a tensor that is not one number
            return False
        return self.low <= number < self.high and not (self.without_zero and number == 0)


@dataclass(frozen=True)
class OneOf:
    """Some values.

    Attributes:
        values: The values: words, booleans or dtypes.
    """

    values: tuple[object, ...]

    @property
    def expected(self) -> str:
        """The values as Python writes them."""
        return " or ".join(map(repr, self.values))

    def __contains__(self, value: object) -> bool:
        return any(type(value) is type(valid) and value == valid for valid in self.values)  # 1 is not True


NOT_NEGATIVE = Numbers("a finite number >= 0")
POSITIVE = Numbers("a finite number > 0", without_zero=True)
COUNT = Numbers("a whole number > 0", without_zero=True, whole=True)
COUNT_OR_ZERO = Numbers("a whole number >= 0", whole=True)
DECAY = Numbers("a number in [0, 1)", high=1)
DECAY_OR_NONE = Numbers("a number in [0, 1) or None", high=1, others=(None,))
TWO_DECAYS = Numbers("two numbers in [0, 1)", high=1, count=2)
SWITCH = OneOf((True, False))
FLOATING = OneOf((torch.float64, torch.float32, torch.bfloat16, torch.float16))


def check_ranges(group: ParamGroup, valid: Mapping[str, Valid], place: str) -> None:
    """Check the options of a complete parameter group.

    Args:
        group: The group.
        valid: The valid values by option.
        place: The group's name in messages.

    Raises:
        ConfigError: A value is not valid.
    """
    for key, values in valid.items():
        if group[key] not in values:
            raise ConfigError(f"{place}: {key} is {group[key]!r}, expected {values.expected}")
