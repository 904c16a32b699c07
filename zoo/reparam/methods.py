"""The methods that are gates: WeSaR, residual scaling, or none at all."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from zoo.config.registry import REPARAMS
from zoo.init.schemes import Init, virtual_std
from zoo.reparam.base import Reparam, kept_lookup
from zoo.reparam.gate import attach_gate
from zoo.spec import MATRICES, Declared, ParamSpec


@REPARAMS.register
class NoReparam(Reparam):
    """Train the weights themselves."""

    type: Literal["none"] = "none"


@REPARAMS.register
class WeSaR(Reparam):
    """One trained gate per matrix, one common sigma for all matrices (WeSaR, section 4.1)."""

    type: Literal["wesar"] = "wesar"
    why_idle: ClassVar[str] = "their output is normalised, a gate would change nothing"
    sigma2: float = Field(4e-5, gt=0, description="sigma^2, the variance of every matrix")
    train_gates: bool = Field(True, description="false: the fixed gates of the ablation")

    def acts_on(self, spec: ParamSpec) -> bool:
        """All matrices."""
        return spec.role in MATRICES

    def idle_on(self, spec: ParamSpec) -> bool:
        """On a sphere, where sigma is dictated, in front of a Norm."""
        return spec.sphere is not None and spec.normalised

    def attach(self, p: Declared, init: Init) -> None:
        """The gate starts at sigma. / sigma; on a sphere of n entries sigma is dictated, 1 / sqrt(n)."""
        sigma = math.sqrt(self.sigma2) if p.spec.sphere is None else p.spec.size(p.spec.sphere) ** -0.5
        start = virtual_std(init, p.spec) / sigma
        attach_gate(p.module, p.local, start, trained=self.train_gates, lookup=kept_lookup(p, init))


@REPARAMS.register
class ResidualScaling(Reparam):
    """y = f(LN(x)) / sqrt(2N) + x: a fixed gate on what ends a residual branch (WeSaR, section 5.1)."""

    type: Literal["residual"] = "residual"
    why_idle: ClassVar[str] = WeSaR.why_idle

    def acts_on(self, spec: ParamSpec) -> bool:
        """The matrix that ends a branch, and its bias."""
        return spec.residual_branches != 1

    def idle_on(self, spec: ParamSpec) -> bool:
        """In front of nGPT's Norm."""
        return spec.sphere is not None and spec.normalised

    def attach(self, p: Declared, init: Init) -> None:
        """1 / sqrt(2N)."""
        attach_gate(p.module, p.local, p.spec.residual_branches**-0.5, trained=False)
