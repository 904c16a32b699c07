"""Reparameterisations: what stands in front of each tensor, from its declaration."""

from __future__ import annotations

import logging
import math
from typing import Literal

from pydantic import Field
from torch import nn

from zoo.init.schemes import Init, virtual_std
from zoo.reparam.gate import attach
from zoo.schema import REPARAMS, Config
from zoo.spec import MATRICES, Declared, ParamSpec, declared

log = logging.getLogger("zoo")


class Reparam(Config):
    """A method: which tensors get a gate, and of what size."""

    def gate_start(self, spec: ParamSpec, init: Init) -> float | None:
        """The gate a tensor starts with, or None for a tensor without one."""
        return None

    @property
    def trained(self) -> bool:
        """Whether the gates are parameters."""
        return False

    def apply(self, model: nn.Module, init: Init) -> None:
        """Put the gates in front of a model's tensors, before it is initialised.

        The scheme's embedding scaling is a fixed gate, unless the method gates the table itself.

        Args:
            model: declared, without gates.
            init: the backbone scheme, whose standard deviations the gates make up for.
        """
        idle = []
        for p in list(declared(model)):
            start, lookup = self.gate_start(p.spec, init), init.lookup_scale(p.spec)
            if start is not None and p.spec.normalised and p.spec.sphere is not None:
                idle.append(p)
                start = None
            trained = self.trained and start is not None
            if not p.spec.tied and start is None:
                start, lookup = lookup, 1.0
            elif not p.spec.tied:
                lookup = 1.0
            if trained or (start is not None and start != 1.0) or lookup != 1.0:
                attach(p.module, p.local, 1.0 if start is None else start, trained=trained, lookup=lookup)
        if idle:
            log.warning(_without_effect(self, idle))


@REPARAMS.register
class NoReparam(Reparam):
    """Train the weights themselves."""

    type: Literal["none"] = "none"


@REPARAMS.register
class WeSaR(Reparam):
    """One trained gate per matrix, one common sigma for all matrices (WeSaR, section 4.1)."""

    type: Literal["wesar"] = "wesar"
    sigma2: float = Field(4e-5, gt=0, description="sigma^2, the variance of every matrix")
    train_gates: bool = Field(True, description="false: the fixed gates of the ablation")

    @property
    def trained(self) -> bool:
        """Whether the gates are parameters."""
        return self.train_gates

    def gate_start(self, spec: ParamSpec, init: Init) -> float | None:
        """sigma. / sigma; on a sphere of n entries sigma is dictated, 1 / sqrt(n)."""
        if spec.role not in MATRICES:
            return None
        return virtual_std(init, spec) / self.common_std(spec)

    def common_std(self, spec: ParamSpec) -> float:
        """The sigma of the trained matrix."""
        return math.sqrt(self.sigma2) if spec.sphere is None else 1 / math.sqrt(spec.size(spec.sphere))


@REPARAMS.register
class ResidualScaling(Reparam):
    """y = f(LN(x)) / sqrt(2N) + x: a fixed gate on what ends a residual branch (WeSaR, section 5.1)."""

    type: Literal["residual"] = "residual"

    def gate_start(self, spec: ParamSpec, init: Init) -> float | None:
        """1 / sqrt(2N) on the matrix and its bias."""
        return None if spec.residual_branches == 1 else 1 / math.sqrt(spec.residual_branches)


def _without_effect(method: Reparam, idle: list[Declared]) -> str:
    axes = sorted({" x ".join(p.spec.axes) for p in idle})
    return (
        f"reparam '{getattr(method, 'type', '')}': no gate on {len(idle)} matrices on the sphere "
        f"whose output is normalised ({', '.join(axes)}): it would change nothing"
    )
