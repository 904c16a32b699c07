"""Convolutions over images."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.spec import Module, ParamSpec, Role


def filters(out: int, into: tuple[str, int], size: int, input_std: float = 1.0) -> ParamSpec:
    """Declare square filters in torch's layout, (out, in, height, width), that a normalisation follows.

    Args:
        out: channels they give.
        into: name and number of the channels they read.
        size: their height and width.
        input_std: standard deviation of the input.

    Returns:
        The declaration; the sum goes over input channels and both directions (Amos, A.9.1).
    """
    axes = ("channels", into[0], "height", "width")
    return ParamSpec(
        Role.CONV, (out, into[1], size, size), axes, fan_in=axes[1:], input_std=input_std, normalised=True
    )


class Convolution(Module):
    """Filters moved over an image that zeros surround; at stride 1 it keeps its size."""

    def __init__(self, spec: ParamSpec, stride: int = 1) -> None:
        """Create the filters.

        Args:
            spec: their declaration, of an odd size.
            stride: pixels from one place to the next, in both directions.
        """
        super().__init__()
        self.param("weight", spec)
        self.stride = stride
        self.padding = spec.shape[-1] // 2

    def forward(self, x: Tensor) -> Tensor:
        """(n, in, h, w) -> (n, out, ceil(h / stride), ceil(w / stride))."""
        return F.conv2d(x, self.virtual("weight"), stride=self.stride, padding=self.padding)
