"""Factors with the ends of their intervals, and their text."""

from __future__ import annotations

import math

from zoo.ablate.scale.line import Estimate, Prediction
from zoo.ablate.scale.speedup import exp

Factor = tuple[float, float, float]
"""A factor and the ends of its interval, which are NaN without one."""

LONG = 1e3
"""Smallest number that is written with two digits."""


def factor(ln_c: float, half: float | None) -> Factor:
    """The factor c with the ends of its interval."""
    half = math.nan if half is None else half
    return exp(ln_c), exp(ln_c - half), exp(ln_c + half)


def estimated(value: Estimate | Prediction, sign: int = 1) -> Factor:
    """An estimate on the line as a factor; its inverse with sign -1."""
    return factor(sign * value.estimate, value.half95)


def factor_text(value: Factor) -> str:
    """A factor with its interval as text: 1.20 x (1.10-1.31)."""
    c, low, high = map(number_text, value)
    return f"{c} x" if math.isnan(value[1]) else f"{c} x ({low}-{high})"


def number_text(value: float) -> str:
    """A factor, or an end of its interval, without a unit."""
    return f"{value:.2f}" if value < LONG else f"{value:.2g}"
