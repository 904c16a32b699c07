"""Algorithm 1 of the Amos paper (arXiv 2210.11693, section 2) on plain tensors.

The names are the paper's: xi is the learning rate, eta the model-oriented scale, g the gradient,
v and b the slots. `zoo/kernels/amos.cpp` computes the same and reads memory once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.optim.slots import slot_dtype

TINY = 2.0**-125
"""Lower bound of v, as in the authors' code: gradients that were always 0 give an update of exactly 0."""

CHUNK = 1 << 18
"""Number of entries that a CPU processes at a time, so that intermediate results stay in the cache."""


@dataclass(frozen=True)
class Step:
    """The numbers of one step, which variables of a group with the same step count share.

    Attributes:
        lr: xi, the learning rate of this step.
        eta: the scale of the variable.
        beta: decay of the running average v.
        correction: 1 - beta^t, t counted from 1.
        momentum: mu, or None.
        clip_value: chi, the largest absolute value of a gradient entry, or None.
        extra_l2: lambda.
        c_coef: p in the decay factor c.
        d_coef: q in the decay factor d.
    """

    lr: float
    eta: float
    beta: float
    correction: float
    momentum: float | None
    clip_value: float | None
    extra_l2: float
    c_coef: float
    d_coef: float


def clipped(g: Tensor, clip_value: float | None) -> Tensor:
    """Return the gradient in the precision of the slots, every entry clipped to +-`clip_value`."""
    g = g.to(slot_dtype(g))
    return g if clip_value is None else g.clamp(-clip_value, clip_value)


def chunks(tensor: Tensor, like: Tensor) -> Sequence[Tensor]:
    """Return `tensor`, which can be expanded to `like`, in pieces of about `CHUNK` entries of `like`.

    On a GPU, where every operation costs a launch, and for a compiler, which merges the operations, there is
    one piece.
    """
    small = like.dim() == 0 or like.numel() <= CHUNK
    if like.device.type != "cpu" or small or torch.compiler.is_compiling():
        return (tensor,)
    rows = max(1, CHUNK * like.shape[0] // like.numel())
    return torch.split(tensor.expand(like.shape[0], *tensor.shape[1:]), rows)


def sum_of_squares(g: Tensor, dims: tuple[int, ...], clip_value: float | None = None) -> Tensor:
    """Return the sum of the squares of the clipped gradient over `dims`, which are kept with size 1."""
    parts = [clipped(piece, clip_value).square() for piece in chunks(g, g)]
    if dims:  # torch takes an empty tuple for all dimensions
        parts = [part.sum(dims, keepdim=True) for part in parts]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts).sum(0, keepdim=True) if 0 in dims else torch.cat(parts)


def factors(
    v: Tensor, b: Tensor, mean_square: Tensor, step: Step, eta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advance the slots by one step.

    Args:
        v: running average of the mean square of the gradient, updated in place.
        b: the slot of the decay factors, of the shape of `v`, updated in place.
        mean_square: M2(g)^2, of the shape of `v`.
        step: the numbers of this step.
        eta: the scale of every slot, of the shape of `v`; None: all slots have that of `step`.

    Returns:
        The factors of the gradient and of theta in `delta`, which is added to theta; each of the shape
        of `v`.
    """
    xi = step.lr
    rate = xi * (step.eta if eta is None else eta)
    root = rate.sqrt() if isinstance(rate, Tensor) else math.sqrt(rate)
    v.lerp_(mean_square, 1 - step.beta)
    v_hat = v.clamp(min=TINY) / step.correction
    c = (1 + step.c_coef * math.sqrt(xi) * b).rsqrt()
    d = (1 + step.d_coef * root * b).reciprocal()
    gamma = c * xi**2 * (mean_square / v_hat)
    b.addcmul_(gamma, 1 + b)  # after c and d, which depend on the old b
    return -d * rate / v_hat.sqrt(), -d * (gamma / 2 + step.extra_l2)


def apply(
    theta: Tensor,
    g: Tensor,
    m: Tensor | None,
    by: tuple[Tensor, Tensor],
    step: Step,
    skip: Tensor | None = None,
) -> None:
    """Add `delta` to `theta`, in place; with momentum, update `m` in place and add it instead.

    Args:
        theta: the variable.
        g: the gradient of the variable.
        m: the running average of `delta`, or None without momentum.
        by: the factors of `g` and `theta`, from `factors`.
        step: the numbers of this step.
        skip: 0-dim bool; if it is True nothing changes. None: the step is always taken.
    """
    every = [theta, g, *by, *([] if m is None else [m])]
    for theta_, g_, for_g, for_theta, *m_ in zip(*(chunks(t, theta) for t in every), strict=True):
        delta = torch.addcmul(for_theta * theta_, clipped(g_, step.clip_value), for_g)
        if skip is not None:
            delta = torch.where(skip, m_[0] if m_ else 0.0, delta)
        if step.momentum is not None:
            delta = m_[0].lerp_(delta, 1 - step.momentum)
            if skip is not None:
                delta = delta * ~skip
        theta_.add_(delta)
