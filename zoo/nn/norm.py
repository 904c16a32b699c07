"""Normalisations. All compute in float32, whatever the activations are."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.spec import Module, ParamSpec, Role


def unit(x: Tensor, scale: Tensor | float | None = None) -> Tensor:
    """Norm(x) = x / ||x||_2 along the last axis (nGPT, section 2), computed in float32.

    Args:
        x: (..., n) floating point.
        scale: a factor of the result, applied before the result is rounded, or None.

    Returns:
        (..., n) in the dtype of `x`; a zero vector stays zero.
    """
    y = x if x.dtype == torch.float64 else x.float()
    y = y * torch.rsqrt(y.square().sum(-1, keepdim=True).clamp_min(1e-24))
    return (y if scale is None else y * scale).to(x.dtype)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * scale, over the last axis."""

    def __init__(self, axis: tuple[str, int], eps: float) -> None:
        """Declare the scale, which starts at 1.

        Args:
            axis: name and size of the normalised axis.
            eps: added to the mean square.
        """
        super().__init__()
        self.eps = eps
        self.param("scale", ParamSpec(Role.NORM_SCALE, shape=(axis[1],), axes=(axis[0],)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., n) -> (..., n) in the dtype of `x`."""
        y = x if x.dtype == torch.float64 else x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.virtual("scale")).to(x.dtype)
