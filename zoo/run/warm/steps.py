"""The eigen learning rates alpha of nGPT's residual branches, fitted on text layer by layer."""

from __future__ import annotations

from torch import Tensor

from zoo.nn.norm import unit

ROUNDS = 4


def step_size(h: Tensor, branch: Tensor, target: Tensor) -> Tensor:
    """The alpha that brings the residual stream closest to the source's.

    Norm(h + alpha (h_B - h)) should equal the target y. With the length c of the vector in the brackets, this
    is a least squares problem for each entry: alpha_i = sum (c y_i - h_i) (h_B,i - h_i) / sum (h_B,i -
    h_i)^2. Because c depends on alpha, the two are computed alternately. nGPT uses |alpha|, hence none is
    below 0.

    Args:
        h: (tokens, d), the residual stream, unit norm.
        branch: (tokens, d), Norm(branch(h)).
        target: (tokens, d), the direction of the source's residual stream after its branch.

    Returns:
        (d,).
    """
    way = branch - h
    # The first estimate is one number, from the component of the target orthogonal to h: sin(angle).
    alpha = ((target - h) * way).sum() / way.square().sum()
    for _ in range(ROUNDS):
        length = (h + alpha * way).norm(dim=-1, keepdim=True)
        alpha = ((length * target - h) * way).sum(0) / way.square().sum(0).clamp_min(1e-30)
        alpha = alpha.clamp_min(0)
    return alpha


def scalar_step(h: Tensor, before: Tensor, added: Tensor) -> Tensor:
    """One alpha for all entries: the mean of r / (1 + r) with r = |added| / |before|; exact for one token."""
    ratio = added.norm(dim=-1) / before.norm(dim=-1)
    mean: Tensor = (ratio / (1 + ratio)).mean()
    return mean.expand(h.shape[-1])


def directions(x: Tensor) -> Tensor:
    """(batch, time, d) -> unit vectors (batch * time, d)."""
    return unit(x.flatten(0, -2))
