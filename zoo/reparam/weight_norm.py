"""Weight Normalization (Salimans and Kingma, arXiv 1602.07868): length and direction of each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from zoo.config.registry import REPARAMS
from zoo.init.initialise import fill
from zoo.init.schemes import Init, virtual_eta, virtual_std
from zoo.reparam.base import Reparam, kept_lookup
from zoo.spec import MATRICES, Declared, Module, ParamSpec, Reparameterisation, Role
from zoo.utils.sharded import whole


@dataclass(frozen=True)
class RowNorm(Reparameterisation):
    """virtual = g v / ||v||, row by row, differentiated through the norm.

    Attributes:
        length: local name of g, one entry per row.
    """

    length: str

    @property
    def added(self) -> tuple[str, ...]:
        """g."""
        return (self.length,)

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """The virtual tensor, of the shape of `weight`."""
        g: Tensor = getattr(module, self.length)
        v = weight.reshape(len(g), -1)
        return (v * (g.unsqueeze(1) / norm(v))).view_as(weight)

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """The rows `index` of the virtual table, times the lookup factor."""
        v = F.embedding(index, weight)
        g = F.embedding(index, getattr(module, self.length).unsqueeze(1))
        return v * (g * self.lookup / norm(v))

    @torch.no_grad()
    def initialise(self, module: Module, name: str) -> None:
        """g starts at the norms of the rows that were drawn, in the virtual tensor's scale."""
        g: Tensor = getattr(module, self.length)
        v = whole(getattr(module, name)).reshape(len(g), -1)
        fill(g.data, norm(v).squeeze(1) * module.specs[name].scale)


def norm(rows: Tensor) -> Tensor:
    """(..., n) -> (..., 1), float32 also under autocast; not zero, so that a row of zeros stays one."""
    return rows.square().sum(-1, keepdim=True).clamp_min(1e-24).sqrt()


@REPARAMS.register
class WeightNormalization(Reparam):
    """One trained length per row, differentiated through the norm (Weight Normalization; WeSaR, C.1)."""

    type: Literal["weight_norm"] = "weight_norm"
    sigma2: float | None = Field(
        16e-5, gt=0, description="variance of every matrix v (WeSaR, Table 6); null: the backbone's"
    )

    def acts_on(self, spec: ParamSpec) -> bool:
        """All matrices; a vector has no rows."""
        return spec.role in MATRICES

    def attach(self, p: Declared, init: Init) -> None:
        """Declare g, whose eta is the norm of a row of eta's, so that the model's eta stays what it was."""
        spec = p.spec
        n = spec.fan_in_size
        scale = 1.0 if self.sigma2 is None else virtual_std(init, spec) / math.sqrt(self.sigma2)
        length = f"{p.local}_length"
        p.module.specs[p.local] = spec.scaled_by(scale)
        p.module.param(
            length,
            ParamSpec(Role.GATE, (spec.rows,), (spec.row_axis,), start=virtual_eta(spec) * math.sqrt(n)),
        )
        p.module.reparameterised[p.local] = RowNorm(length, lookup=kept_lookup(p, init))
