"""Convolutions over images."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.spec import Module, ParamSpec, Role


def filters(out: int, into: tuple[str, int], size: int, input_std: float = 1.0) -> ParamSpec:
    """Declare square filters in torch's layout, (out, in, height, width), followed by a normalisation.

    Args:
        out: number of output channels.
        into: name and number of the input channels.
        size: height and width of a filter.
        input_std: standard deviation of the input.

    Returns:
        The declaration, whose fan-in is input channels, height and width (Amos, A.9.1).
    """
    axes = ("channels", into[0], "height", "width")
    return ParamSpec(
        Role.CONV, (out, into[1], size, size), axes, fan_in=axes[1:], input_std=input_std, normalised=True
    )


class Convolution(Module):
    """A convolution with zero padding, which keeps the size of the image at stride 1."""

    def __init__(self, spec: ParamSpec, stride: int = 1) -> None:
        """Create the filters.

        Args:
            spec: the declaration of the filters, whose size is odd.
            stride: the stride in both directions.
        """
        super().__init__()
        self.param("weight", spec)
        self.stride = stride
        self.padding = spec.shape[-1] // 2

    def forward(self, x: Tensor) -> Tensor:
        """(n, in, h, w) -> (n, out, ceil(h / stride), ceil(w / stride))."""
        return F.conv2d(x, self.virtual("weight"), stride=self.stride, padding=self.padding)
