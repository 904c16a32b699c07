"""sigma-Reparam (Zhai et al., arXiv 2303.06296): the spectral norm of each matrix is a parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from zoo.config.registry import REPARAMS
from zoo.init.schemes import Init, virtual_std
from zoo.reparam.base import Reparam
from zoo.spec import MATRICES, Declared, Module, ParamSpec, Reparameterisation, Role
from zoo.utils.sharded import whole

FIRST_ITERATIONS = 15
"""Steps of the power method before training, as in torch; from a random start, one says little."""


@dataclass(frozen=True)
class SpectralNorm(Reparameterisation):
    """virtual = gamma W / sigma, sigma = u . W v, with u and v constant between optimizer steps.

    Attributes:
        gamma: local name of the trained factor.
        left: local name of u, the buffer (out,).
        right: local name of v, the buffer (in,).
        differentiate: whether the gradient goes through sigma.
        scale: a fixed factor on the whole tensor: the embedding scaling of a table.
    """

    gamma: str
    left: str
    right: str
    differentiate: bool
    scale: float = 1.0

    @property
    def added(self) -> tuple[str, ...]:
        """gamma, u and v."""
        return self.gamma, self.left, self.right

    def factor(self, module: Module, weight: Tensor) -> Tensor:
        """gamma / sigma, (1,)."""
        gamma: Tensor = getattr(module, self.gamma)
        return gamma * self.scale / self.sigma(module, weight if self.differentiate else weight.detach())

    def sigma(self, module: Module, weight: Tensor) -> Tensor:
        """u . W v, 0-dim: the spectral norm once the power method has converged.

        Elementwise, because autocast would round a product of matrices.
        """
        u, v = module.get_buffer(self.left), module.get_buffer(self.right)
        return ((weight.reshape(len(u), -1) * v).sum(1) * u).sum()

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """The virtual tensor, of the shape of `weight`."""
        return weight * self.factor(module, weight)

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """The rows `index` of the virtual table, times the lookup factor."""
        return F.embedding(index, weight) * (self.factor(module, weight) * self.lookup)

    def initialise(self, module: Module, name: str) -> None:
        """Start near the singular vectors of the matrix that was drawn."""
        self.iterate(module, name, FIRST_ITERATIONS)

    def after_step(self, module: Module, name: str) -> None:
        """One step of the power method on the weights that the optimizer has left."""
        self.iterate(module, name, 1)

    @torch.no_grad()
    def iterate(self, module: Module, name: str, times: int) -> None:
        """Steps of the power method (Miyato et al., arXiv 1802.05957, Algorithm 1); all ranks must ask."""
        u, v = module.get_buffer(self.left), module.get_buffer(self.right)
        weight = whole(getattr(module, name)).reshape(len(u), -1)
        for _ in range(times):
            u.copy_(F.normalize(weight @ v, dim=0))
            v.copy_(F.normalize(weight.mT @ u, dim=0))


@REPARAMS.register
class SigmaReparam(Reparam):
    """W gamma / sigma(W), one power iteration per training step (sigma-Reparam; WeSaR, C.2)."""

    type: Literal["sigma_reparam"] = "sigma_reparam"
    keeps_the_model: ClassVar[bool] = False
    sigma2: float = Field(
        64e-5, gt=0, description="variance of every matrix (WeSaR, Table 6, pre-LN; post-LN: 16e-5)"
    )
    differentiate: bool = Field(
        False,
        description="send the gradient through sigma, as the authors' code does; WeSaR's paper does not",
    )

    def acts_on(self, spec: ParamSpec) -> bool:
        """All matrices; a vector has no spectral norm worth the name."""
        return spec.role in MATRICES

    def attach(self, p: Declared, init: Init) -> None:
        """gamma starts at 1, whatever the backbone says (C.2).

        Embedding scaling makes up for the standard deviation that leaves: 1 / (sqrt(m) + sqrt(n))
        for a random m x n matrix of spectral norm 1.
        """
        module, name, spec = p.module, p.local, p.spec
        m, n = spec.rows, spec.fan_in_size
        lookup = init.lookup_scale(spec)
        if lookup != 1.0:
            lookup *= init.matrix_std(spec) * (math.sqrt(m) + math.sqrt(n))
        scale, kept = (1.0, lookup) if spec.tied else (lookup, 1.0)
        gamma, left, right = f"{name}_gamma", f"{name}_u", f"{name}_v"
        module.specs[name] = spec.scaled_by(virtual_std(init, spec) / math.sqrt(self.sigma2))
        module.param(gamma, ParamSpec(Role.GATE, (1,), ("gate",), start=1.0))
        module.buffer(left, (m,), "unit")
        module.buffer(right, (n,), "unit")
        module.reparameterised[name] = SpectralNorm(
            gamma, left, right, self.differentiate, scale, lookup=kept
        )
