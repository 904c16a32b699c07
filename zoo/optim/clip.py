"""Clipping of gradients: the base classes, and clipping by the global norm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from zoo.config.registry import CLIPS, Config
from zoo.utils.untyped import JsonObject

Gradients = Sequence[tuple[str, Tensor]]
"""Names, and parameters with a gradient, plain or sharded."""


class Clip:
    """Clips the gradients of every step; its memory of earlier steps is part of the checkpoint.

    Attributes:
        largest: `train.clip_norm`, the largest global norm; None: there is none.
    """

    def __init__(self, largest: float | None) -> None:
        self.largest = largest

    def prepare(self, model: nn.Module) -> None:
        """Prepare for the model whose gradients will be clipped, before the first step.

        Raises:
            ConfigError: The clipping has no effect on this model, or is impossible.
        """

    def clip(self, gradients: Gradients, norm: Tensor) -> None:
        """Clip gradients in place.

        Args:
            gradients: the parameters whose gradients are clipped, the same on all ranks.
            norm: their global norm, 0-dim, the same on all ranks.
        """
        if self.largest is not None:
            scale_to(gradients, self.largest, norm)

    def state(self) -> JsonObject:
        """The state that the next steps depend on, as JSON data."""
        return {}

    def load(self, state: JsonObject) -> None:
        """Restore a `state`; {} is the state before the first step."""


def scale_to(gradients: Gradients, largest: float, norm: Tensor) -> None:
    """Multiply gradients by min(1, largest / (norm + 1e-6)), as torch does."""
    torch.nn.utils.clip_grads_with_norm_([parameter for _, parameter in gradients], largest, norm)


class ClipConfig(Config):
    """The configuration of a kind of clipping.

    Attributes:
        needs_reparam: whether the clipping has an effect only on a model with a reparameterisation.
        waits_for: the quantity that each step copies from the GPU to the host, which waits for it; None:
            nothing.
    """

    needs_reparam: ClassVar[bool] = False
    waits_for: ClassVar[str | None] = None

    @abstractmethod
    def build(self, largest: float | None) -> Clip:
        """The clipping of a run.

        Args:
            largest: `train.clip_norm`.
        """
        raise NotImplementedError


@CLIPS.register
class GlobalNorm(ClipConfig):
    """The global norm alone: at most `train.clip_norm`."""

    type: Literal["norm"] = "norm"

    def build(self, largest: float | None) -> Clip:
        """Clipping by the global norm."""
        return Clip(largest)
