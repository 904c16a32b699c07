"""Normalisations. All compute in float32, or in float64 for float64, whatever dtype the activations have."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.spec import Module, ParamSpec, Role
from zoo.utils.exact import exact


def unit(x: Tensor, scale: Tensor | float | None = None) -> Tensor:
    """Norm(x) = x / ||x||_2 along the last axis (nGPT, section 2), computed in float32.

    Args:
        x: (..., n) floating point.
        scale: a factor of the result, applied before the result is rounded, or None.

    Returns:
        (..., n) in the dtype of `x`; a zero vector stays zero.
    """
    y = exact(x)
    y = y * torch.rsqrt(y.square().sum(-1, keepdim=True).clamp_min(1e-24))
    return (y if scale is None else y * scale).to(x.dtype)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * scale, over the last axis (Zhang and Sennrich 2019, arXiv 1910.07467)."""

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
        y = exact(x)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.factor()).to(x.dtype)

    def factor(self) -> Tensor:
        """What the normalised entries are multiplied by, (n,)."""
        return self.virtual("scale")


class CentredRMSNorm(RMSNorm):
    """x / sqrt(mean(x^2) + eps) * (1 + shift), over the last axis: RMSNorm with 1 as its origin (Gemma).

    Near 1 the parameter is as exact in half precision as numbers near 0 are. Weight decay does not act on it.
    """

    def __init__(self, axis: tuple[str, int], eps: float) -> None:
        """Declare the shift, which starts at 0 and has the range of a scale.

        Args:
            axis: name and size of the normalised axis.
            eps: added to the mean square.
        """
        Module.__init__(self)
        self.eps = eps
        # A bias is what starts at 0; its eta is half of the declared standard deviation, and a scale's is 1.
        self.param("shift", ParamSpec(Role.BIAS, shape=(axis[1],), axes=(axis[0],), output_std=2.0))

    def factor(self) -> Tensor:
        """1 + shift, (n,)."""
        return 1 + self.virtual("shift")


RMSNormClass = type[RMSNorm]
"""RMSNorm or a form of it."""
