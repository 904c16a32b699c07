"""Weight Normalization (Salimans and Kingma, arXiv 1602.07868): length and direction of each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from zoo.config.registry import REPARAMS
from zoo.init.schemes import Init, virtual_eta, virtual_std
from zoo.reparam.base import LEAST_VARIANCE, Reparam, require_random_rows, tied_lookup_scale
from zoo.spec import MATRICES, Declared, Module, ParamSpec, Reparameterisation, Role
from zoo.utils.exact import exact
from zoo.utils.sharded import assign, whole


@dataclass(frozen=True)
class RowNorm(Reparameterisation):
    """virtual = g v / ||v||, row by row, differentiated through the norm.

    Attributes:
        length: local name of g, one entry per row.
        forward_start: whether g is still to be set from the forward values of the first step.
    """

    length: str
    forward_start: bool = False

    @property
    def added(self) -> tuple[str, ...]:
        """Return the name of g."""
        return (self.length,)

    @property
    def row_norms(self) -> str:
        """Return the name of g."""
        return self.length

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """Return the virtual tensor, of the shape of `weight`, in float32 or better."""
        g: Tensor = getattr(module, self.length)
        v = weight.reshape(len(g), -1)
        return (v * (g.unsqueeze(1) / norm(v))).view_as(weight)

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """Return the rows `index` of the virtual table, times the lookup factor."""
        v = F.embedding(index, weight)
        g = F.embedding(index, getattr(module, self.length).unsqueeze(1))
        return v * (g * self.lookup / norm(v))

    @torch.no_grad()
    def initialise(self, module: Module, name: str) -> None:
        """Set g to the norms of the initial rows, in the scale of the virtual tensor."""
        g: Tensor = getattr(module, self.length)
        v = whole(getattr(module, name)).reshape(len(g), -1)
        assign(g.data, norm(v).squeeze(1) * module.specs[name].scale)


def norm(rows: Tensor) -> Tensor:
    """Return the norms (..., 1) of rows (..., n), in float32; positive, so that a row of zeros stays one."""
    return exact(rows).square().sum(-1, keepdim=True).clamp_min(1e-24).sqrt()


@REPARAMS.register
class WeightNormalization(Reparam):
    """One trained length per row, differentiated through the norm (Weight Normalization; WeSaR, C.1).

    When a model is built, g is set to the norms of its rows. With `start: forward`, `zoo train` sets g again
    before the first step; in a training loop of your own, call `zoo.reparam.start_from_forward`.
    """

    method_family: ClassVar[str] = "norms"
    method_source: ClassVar[str] = "arXiv 1602.07868"

    type: Literal["weight_norm"] = "weight_norm"
    sigma2: float | None = Field(
        16e-5,
        ge=LEAST_VARIANCE,
        description="variance of every matrix v (WeSaR, Table 6); null: that of the scheme",
    )

    start: Literal["forward", "rows"] = Field(
        "forward",
        description="what g starts from: `forward`, the values of the first step's batch (WeSaR, C.1; see "
        "zoo/reparam/forward_start.py); `rows`, the norms of the rows that the scheme drew",
    )

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the tensor is a matrix."""
        return spec.role in MATRICES

    def check(self, p: Declared) -> None:
        """Refuse a matrix that starts at 0, or that is no stack of rows."""
        require_random_rows(p, self.type)

    def attach(self, p: Declared, init: Init) -> None:
        """Declare g, whose eta is the norm of a row with entries eta: the virtual tensor keeps its eta."""
        spec = p.spec
        n = spec.fan_in_size
        scale = 1.0 if self.sigma2 is None else virtual_std(init, spec) / math.sqrt(self.sigma2)
        length = f"{p.local}_length"
        p.module.specs[p.local] = spec.scaled_by(scale)
        p.module.param(
            length,
            ParamSpec(Role.GATE, (spec.rows,), (spec.row_axis,), start=virtual_eta(spec) * math.sqrt(n)),
        )
        p.module.reparameterised[p.local] = RowNorm(
            length, forward_start=self.start == "forward", lookup=tied_lookup_scale(p, init)
        )
