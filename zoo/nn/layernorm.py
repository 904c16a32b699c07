"""LayerNorm with a scale and, unless it is left out, a bias, computed in float32."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.spec import Module, ParamSpec, Role


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * scale + bias, over the last axis (Ba et al. 2016)."""

    def __init__(self, axis: tuple[str, int], eps: float, bias: bool = True) -> None:
        """Declare scale and bias, which start at 1 and 0.

        Args:
            axis: name and size of the normalised axis.
            eps: added to the variance.
            bias: whether the norm has a bias.
        """
        super().__init__()
        self.eps = eps
        name, size = axis
        self.param("scale", ParamSpec(Role.NORM_SCALE, shape=(size,), axes=(name,)))
        self.has_bias = bias
        if bias:
            self.param("bias", ParamSpec(Role.BIAS, shape=(size,), axes=(name,)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., n) -> (..., n) in the dtype of `x`."""
        scale, bias = self.virtual("scale"), self.virtual("bias") if self.has_bias else None
        return F.layer_norm(x.to(scale.dtype), scale.shape, scale, bias, self.eps).to(x.dtype)
