"""A way to clip: by the norm of the weights (AGC, arXiv 2102.06171), here of whole tensors."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from zoo import CLIPS, ClipConfig, ZooError
from zoo.optim.clip import Clip, Gradients


class ByWeights(Clip):
    """Gradients are at most `share` times as long as the parameters that they belong to."""

    def __init__(self, share: float) -> None:
        super().__init__(largest=None)
        self.share = share

    def clip(self, gradients: Gradients, norm: Tensor) -> None:
        """Clip in place; the global norm is not used."""
        for _, parameter in gradients:
            assert parameter.grad is not None  # only such parameters are passed
            largest = self.share * parameter.detach().norm().clamp(min=1e-3)
            parameter.grad.mul_((largest / parameter.grad.norm().clamp(min=1e-12)).clamp(max=1))


@CLIPS.register
class ByWeightsConfig(ClipConfig):
    """Each gradient is at most a share of the norm of its parameter."""

    type: Literal["by-weights"] = "by-weights"
    share: float = Field(0.1, gt=0, description="largest norm of a gradient over that of its parameter")

    def build(self, largest: float | None) -> ByWeights:
        """Build the clipping; a limit of the global norm would be a second one."""
        if largest is not None:
            raise ZooError(
                f"train.clip_norm: value {largest}: has no effect with clip by-weights; expected null"
            )
        return ByWeights(self.share)
