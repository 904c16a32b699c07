"""Adam's running averages of the gradient and of its square."""

from __future__ import annotations

import math

from zoo.kernels.foreach import Many


def advance_moments(m: Many, v: Many, g: Many, betas: tuple[float, float]) -> None:
    """Add a gradient to both averages, in place."""
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])


def denominator(v: Many, beta2: float, t: int, eps: float) -> Many:
    """sqrt(v / (1 - beta2^t)) + eps, in step t, counted from 1."""
    return v.sqrt().div_(math.sqrt(1 - beta2**t)).add_(eps)
