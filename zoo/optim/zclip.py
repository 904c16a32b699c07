"""ZClip: the global norm is clipped where it is an outlier among those before it (arXiv 2504.02507)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from zoo.config.registry import CLIPS
from zoo.optim.clip import Clip, ClipConfig, Gradients, scale_to
from zoo.utils.untyped import JsonObject

EPS = 1e-6
"""A constant that is added to the standard deviation."""


class ZClip(Clip):
    """Clip the norm n by its running mean mu and variance sigma^2 (Algorithm 1, with adaptive scaling).

    After the warm-up::

        z   = (n - mu) / (sigma + eps)
        n*  = mu + threshold sigma (threshold / z) where z > threshold, otherwise n
        clip to min(n*, clip_norm)
        mu       <- alpha mu + (1 - alpha) n*
        sigma^2  <- alpha sigma^2 + (1 - alpha) (n* - mu)^2,  with the new mu

    The further out a norm is, the harder it is clipped. mu and sigma^2 start as mean and population variance
    of the first `warmup` norms, in whose steps only clip_norm clips. A norm that is not finite does not enter
    them.
    """

    def __init__(self, largest: float | None, alpha: float, threshold: float, warmup: int) -> None:
        super().__init__(largest)
        self._alpha, self._threshold, self._warmup = alpha, threshold, warmup
        self._mean: float | None = None
        self._variance = 0.0
        self._norms: list[float] = []

    def clip(self, gradients: Gradients, norm: Tensor) -> None:
        """Clip in place; the norm is read by the host."""
        n = float(norm)
        if self._mean is None:
            super().clip(gradients, norm)
            if math.isfinite(n):
                self._norms.append(n)
            if len(self._norms) == self._warmup:
                self._mean = sum(self._norms) / self._warmup
                self._variance = sum((n - self._mean) ** 2 for n in self._norms) / self._warmup
                self._norms = []
            return
        sigma = math.sqrt(self._variance)
        z = (n - self._mean) / (sigma + EPS)
        kept = n if z <= self._threshold else self._mean + self._threshold**2 * sigma / z
        largest = kept if self.largest is None else min(kept, self.largest)
        if largest < n:
            scale_to(gradients, largest, norm)
        if math.isfinite(n):
            self._mean = self._alpha * self._mean + (1 - self._alpha) * kept
            self._variance = self._alpha * self._variance + (1 - self._alpha) * (kept - self._mean) ** 2

    def state(self) -> JsonObject:
        """The mean and the variance; before the end of the warm-up, the norms so far."""
        return {"mean": self._mean, "variance": self._variance, "norms": list(self._norms)}

    def load(self, state: JsonObject) -> None:
        """Restore a `state`."""
        self._mean = state.get("mean")
        self._variance = state.get("variance", 0.0)
        self._norms = list(state.get("norms", ()))


@CLIPS.register
class ZClipConfig(ClipConfig):
    """ZClip: the global norm is clipped where it is an outlier among those before (arXiv 2504.02507)."""

    method_family: ClassVar[str] = "global norm"
    method_source: ClassVar[str] = "arXiv 2504.02507"
    waits_for: ClassVar[str | None] = "the norm of the gradient"

    type: Literal["zclip"] = "zclip"
    alpha: float = Field(0.97, ge=0, lt=1, description="decay of the running mean and variance of the norm")
    threshold: float = Field(
        2.5, gt=0, description="number of standard deviations above the mean from which a norm is clipped"
    )
    warmup: int = Field(
        25, ge=2, description="number of first steps, from whose norms the mean and variance start"
    )

    def build(self, largest: float | None) -> ZClip:
        """The clipping of a run; `train.clip_norm` also bounds the norm, like the authors' max_grad_norm."""
        return ZClip(largest, self.alpha, self.threshold, self.warmup)
