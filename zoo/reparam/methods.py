"""The methods that consist of gates: WeSaR and residual scaling; and no method."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from zoo.config.registry import REPARAMS
from zoo.init.schemes import Init, virtual_std
from zoo.reparam.base import LEAST_VARIANCE, Reparam, is_normalised_next, tied_lookup_scale
from zoo.reparam.gate import attach_gate
from zoo.spec import MATRICES, Declared, ParamSpec


@REPARAMS.register
class NoReparam(Reparam):
    """Train the weights themselves."""

    type: Literal["none"] = "none"
    common_std: ClassVar[bool | None] = False

    def require_tensors(self, parameters: list[Declared], kind: str) -> None:
        """Accept every model, because nothing has to be found."""

    def attach(self, p: Declared, init: Init) -> None:
        """Leave the tensor as it is; the method acts on none."""


@REPARAMS.register
class WeSaR(Reparam):
    """One trained gate per matrix, one common sigma for all matrices (WeSaR, section 4.1)."""

    method_family: ClassVar[str] = "factors"
    method_source: ClassVar[str] = "WeSaR, section 4.1"

    type: Literal["wesar"] = "wesar"
    common_std: ClassVar[bool | None] = True
    no_effect_reason: ClassVar[str] = (
        "their output is normalised or has a trained scaling already, a gate would change nothing"
    )
    sigma2: float = Field(4e-5, ge=LEAST_VARIANCE, description="sigma^2, the variance of every matrix")
    train_gates: bool = Field(True, description="false: the fixed gates of the ablation")

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the tensor is a matrix."""
        return spec.role in MATRICES

    def has_no_effect_on(self, spec: ParamSpec) -> bool:
        """Return whether a gate on a matrix on a sphere, which fixes sigma, would change or add nothing."""
        return spec.sphere_dim is not None and (spec.normalised or spec.rescaled)

    def is_idle_on(self, p: Declared) -> bool:
        """Return whether a norm cancels the gate, as that of queries and keys does with QK-norm."""
        return is_normalised_next(p)

    def attach(self, p: Declared, init: Init) -> None:
        """Attach a gate that starts at the scheme's standard deviation over the common one.

        For vectors of n entries on a sphere the common standard deviation is 1 / sqrt(n).
        """
        dim = p.spec.sphere_dim
        sigma = math.sqrt(self.sigma2) if dim is None else p.spec.shape[dim] ** -0.5
        start = virtual_std(init, p.spec) / sigma
        attach_gate(p.module, p.local, start, trained=self.train_gates, lookup=tied_lookup_scale(p, init))


@REPARAMS.register
class ResidualScaling(Reparam):
    """y = f(LN(x)) / sqrt(2N) + x: a fixed gate on the last map of a residual branch (WeSaR, 5.3 and C.3)."""

    method_family: ClassVar[str] = "factors"
    method_source: ClassVar[str] = "WeSaR, 5.3 and C.3"

    type: Literal["residual"] = "residual"
    needs_scale: ClassVar[bool] = False
    common_std: ClassVar[bool | None] = False
    scales_branches: ClassVar[bool] = True
    no_effect_reason: ClassVar[str] = "their output is normalised, a factor would change nothing"

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the parameter ends a residual branch, as its last matrix or bias."""
        return spec.residual_branches != 1

    def has_no_effect_on(self, spec: ParamSpec) -> bool:
        """Return whether the matrix is on a sphere and its output is normalised, as in nGPT."""
        return spec.sphere_dim is not None and spec.normalised

    def is_idle_on(self, p: Declared) -> bool:
        """Return whether a norm behind the branch cancels the factor."""
        return is_normalised_next(p)

    def attach(self, p: Declared, init: Init) -> None:
        """Attach the fixed gate 1 / sqrt(2N)."""
        attach_gate(p.module, p.local, p.spec.residual_branches**-0.5, trained=False)
