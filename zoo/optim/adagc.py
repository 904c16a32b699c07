"""AdaGC: the gradient of every tensor is clipped by its own usual norm (arXiv 2502.11034)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.registry import CLIPS
from zoo.optim.clip import Clip, ClipConfig, Gradients
from zoo.optim.fixed_norm import frobenius
from zoo.utils.sharded import local
from zoo.utils.untyped import JsonObject


class AdaGC(Clip):
    """Clip every tensor i, whose gradient has the norm n_i, by its usual norm gamma_i.

    In the first `warmup` steps the global norm is clipped to clip_norm, and gamma_i is the smallest n_i after
    that. Afterwards::

        h        = min(1, factor gamma_i / n_i)
        g_i     <- h g_i
        gamma_i <- beta gamma_i + (1 - beta) h n_i

    The tensors are scaled differently, so that the direction of the step changes. A norm of 0 is left out of
    the minimum, which is our choice: gamma_i would stay 0 and the tensor would never move. A norm that is not
    finite leaves gamma_i as it was.
    """

    def __init__(self, largest: float | None, beta: float, factor: float, warmup: int) -> None:
        super().__init__(largest)
        self._beta, self._factor, self._warmup = beta, factor, warmup
        self._steps = 0
        self._usual: dict[str, float] = {}

    def clip(self, gradients: Gradients, norm: Tensor) -> None:
        """Clip in place; the norms of all tensors are read by the host at once."""
        self._steps += 1
        if warming_up := self._steps <= self._warmup:
            super().clip(gradients, norm)
        parameters = [parameter for _, parameter in gradients]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norms = torch.stack(frobenius(grads)).tolist() if grads else []
        for (name, _), grad, n in zip(gradients, grads, norms, strict=True):
            usual = self._usual.get(name)
            if warming_up or usual is None:
                if 0 < n < math.inf:
                    self._usual[name] = n if usual is None else min(usual, n)
                continue
            h = min(1.0, self._factor * usual / n) if n > 0 else 1.0
            if h < 1:
                local(grad).mul_(h)
            if math.isfinite(n):
                self._usual[name] = self._beta * usual + (1 - self._beta) * h * n

    def state(self) -> JsonObject:
        """The number of steps, and gamma of each parameter by its name."""
        return {"steps": self._steps, "usual": dict(self._usual)}

    def load(self, state: JsonObject) -> None:
        """Restore a `state`."""
        self._steps = state.get("steps", 0)
        self._usual = dict(state.get("usual", {}))


@CLIPS.register
class AdaGCConfig(ClipConfig):
    """AdaGC: the gradient of every tensor is clipped by its own usual norm (arXiv 2502.11034)."""

    method_family: ClassVar[str] = "norm per tensor"
    method_source: ClassVar[str] = "arXiv 2502.11034"
    waits_for: ClassVar[str | None] = "the norms of the gradients"

    type: Literal["adagc"] = "adagc"
    beta: float = Field(0.98, ge=0, lt=1, description="decay of a tensor's usual norm")
    factor: float = Field(1.05, gt=0, description="largest norm in units of the usual one, lambda")
    warmup: int = Field(
        100,
        ge=1,
        description="first steps, in which clip_norm clips and the smallest norm becomes the usual one",
    )

    def build(self, largest: float | None) -> AdaGC:
        """The clipping of a run."""
        return AdaGC(largest, self.beta, self.factor, self.warmup)
