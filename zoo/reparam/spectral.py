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
from zoo.reparam.base import LEAST_VARIANCE, Reparam, require_random_rows
from zoo.spec import MATRICES, Declared, Module, ParamSpec, Reparameterisation, Role
from zoo.utils.sharded import whole

FIRST_ITERATIONS = 15
"""Steps of the power method before training, as in torch; a single one from a random start is inaccurate."""


@dataclass(frozen=True)
class SpectralNorm(Reparameterisation):
    """virtual = gamma W / sigma, sigma = u . W v, with u and v constant between optimizer steps.

    Attributes:
        gamma: local name of the trained factor.
        left: local name of the buffer u, (out,).
        right: local name of the buffer v, (in,).
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
        """Return the names of gamma, u and v."""
        return self.gamma, self.left, self.right

    def factor(self, module: Module, weight: Tensor) -> Tensor:
        """Return gamma / sigma, (1,)."""
        gamma: Tensor = getattr(module, self.gamma)
        return gamma * self.scale / self.sigma(module, weight if self.differentiate else weight.detach())

    def sigma(self, module: Module, weight: Tensor) -> Tensor:
        """Return u . W v, 0-dim: the spectral norm once the power method has converged.

        It is computed elementwise, because autocast would round a matrix product.
        """
        u, v = module.get_buffer(self.left), module.get_buffer(self.right)
        return ((weight.reshape(len(u), -1) * v).sum(1) * u).sum()

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """Return the virtual tensor, of the shape of `weight`."""
        return weight * self.factor(module, weight)

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """Return the rows `index` of the virtual table, times the lookup factor."""
        return F.embedding(index, weight) * (self.factor(module, weight) * self.lookup)

    def initialise(self, module: Module, name: str) -> None:
        """Let u and v approach the first singular vectors of the initial matrix."""
        self.iterate(module, name, FIRST_ITERATIONS)

    def after_step(self, module: Module, name: str) -> None:
        """Take one step of the power method on the new weights."""
        self.iterate(module, name, 1)

    @torch.no_grad()
    def iterate(self, module: Module, name: str, times: int) -> None:
        """Take steps of the power method (Miyato et al., arXiv 1802.05957, Algorithm 1) on all ranks."""
        u, v = module.get_buffer(self.left), module.get_buffer(self.right)
        weight = whole(getattr(module, name)).reshape(len(u), -1)
        for _ in range(times):
            u.copy_(F.normalize(weight @ v, dim=0))
            v.copy_(F.normalize(weight.mT @ u, dim=0))


@REPARAMS.register
class SigmaReparam(Reparam):
    """W gamma / sigma(W), one power iteration per training step (sigma-Reparam; WeSaR, C.2)."""

    method_family: ClassVar[str] = "norms"
    method_source: ClassVar[str] = "arXiv 2303.06296"

    type: Literal["sigma_reparam"] = "sigma_reparam"
    preserves_outputs: ClassVar[bool] = False
    sigma2: float = Field(
        64e-5,
        ge=LEAST_VARIANCE,
        description="variance of every matrix (WeSaR, Table 6, pre-LN; post-LN: 16e-5)",
    )
    differentiate: bool = Field(
        False,
        description="send the gradient through sigma, as the authors' code does; WeSaR's paper does not",
    )

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the tensor is a matrix."""
        return spec.role in MATRICES

    def check(self, p: Declared) -> None:
        """Refuse a matrix that starts at 0, or that is no stack of rows."""
        require_random_rows(p, self.type)

    def attach(self, p: Declared, init: Init) -> None:
        """Declare gamma, which starts at 1 whatever the scheme is (C.2), u and v.

        A random m x n matrix of spectral norm 1 has a standard deviation of 1 / (sqrt(m) + sqrt(n)), which
        embedding scaling compensates.
        """
        module, name, spec = p.module, p.local, p.spec
        m, n = spec.rows, spec.fan_in_size
        lookup = init.lookup_scale(spec)
        if lookup != 1.0:
            lookup *= init.matrix_std(spec) * (math.sqrt(m) + math.sqrt(n))
        scale, lookup_scale = (1.0, lookup) if spec.tied else (lookup, 1.0)
        gamma, left, right = f"{name}_gamma", f"{name}_u", f"{name}_v"
        module.specs[name] = spec.scaled_by(virtual_std(init, spec) / math.sqrt(self.sigma2))
        module.param(gamma, ParamSpec(Role.GATE, (1,), ("gate",), start=1.0))
        module.buffer(left, (m,), "unit")
        module.buffer(right, (n,), "unit")
        module.reparameterised[name] = SpectralNorm(
            gamma, left, right, self.differentiate, scale, lookup=lookup_scale
        )
