"""Adam's running averages of the gradient and of its square, and its step."""

from __future__ import annotations

import math

from zoo.kernels.foreach import Many


def advance_moments(m: Many, v: Many, g: Many, betas: tuple[float, float]) -> None:
    """Add a gradient to both averages, in place."""
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])


def decay_weights(theta: Many, share: float) -> None:
    """Shorten parameters by a share of themselves, in place."""
    if share:
        theta.mul_(1 - share)


def adam_step(
    theta: Many, m: Many, v: Many, *, t: int, beta2: float, eps: float, lr: float, decay: float = 0.0
) -> None:
    """theta - lr (m / (sqrt(v / (1 - beta2^t)) + eps) + decay theta), in place; steps t count from 1.

    The correction of v is a factor of the whole fraction here, which saves a pass over the tensors.
    """
    if decay:
        theta.add_(theta, alpha=-lr * decay)
    root = math.sqrt(1 - beta2**t)
    theta.addcdiv_(m, v.sqrt().add_(eps * root), value=-lr * root)
