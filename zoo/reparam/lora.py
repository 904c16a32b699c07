"""LoRA (Hu et al., arXiv 2106.09685): the weights are frozen, and a change of low rank is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from torch import Tensor
from torch.nn import functional as F

from zoo.config.registry import REPARAMS
from zoo.init.schemes import Init, virtual_eta
from zoo.reparam.base import Reparam, require_rows_first, tied_lookup_scale
from zoo.spec import MATRICES, Declared, Module, ParamSpec, Reparameterisation, Role
from zoo.utils.errors import ConfigError
from zoo.utils.exact import exact


@dataclass(frozen=True)
class LowRank(Reparameterisation):
    """virtual = W + factor B A, projected to the sphere if W is on one.

    Attributes:
        down: local name of A, (rank, in).
        up: local name of B, (out, rank).
        factor: alpha / rank.
        sphere_dim: the dimension whose vectors have unit norm, or None.
    """

    down: str
    up: str
    factor: float
    sphere_dim: int | None = None

    @property
    def added(self) -> tuple[str, ...]:
        """Return the names of A and B."""
        return self.down, self.up

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """Return the virtual tensor, of the shape of `weight`, in float32 or better."""
        change = exact(getattr(module, self.up)) @ exact(getattr(module, self.down))
        virtual = exact(weight) + change.view_as(weight) * self.factor
        if self.sphere_dim is not None:
            virtual = F.normalize(virtual, dim=self.sphere_dim)
        return virtual

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """Return the rows `index` of the virtual table, times the lookup factor."""
        change = exact(F.embedding(index, getattr(module, self.up))) @ exact(getattr(module, self.down))
        virtual = exact(F.embedding(index, weight)) + change * self.factor
        if self.sphere_dim is not None:
            virtual = F.normalize(virtual, dim=-1)
        return virtual * self.lookup


@REPARAMS.register
class LoRA(Reparam):
    """Frozen weights and, on some of them, a trained change of low rank (LoRA)."""

    method_family: ClassVar[str] = "low rank"
    method_source: ClassVar[str] = "arXiv 2106.09685"

    type: Literal["lora"] = "lora"
    needs_scale: ClassVar[bool] = False
    rank: int = Field(8, gt=0, description="rank r of the change")
    alpha: float = Field(8.0, gt=0, description="the change is alpha / r B A")
    roles: tuple[Role, ...] = Field((Role.LINEAR, Role.CONV), description="roles of the matrices to change")
    axes: tuple[str, ...] = Field((), description="axes that these matrices must have, by name")
    trains: tuple[str, ...] = Field(
        ("classes",),
        description="parameters with one of these axes are trained as a whole: a classifier's head",
    )

    @field_validator("roles")
    @classmethod
    def _are_matrices(cls, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        others = [str(role) for role in roles if role not in MATRICES]
        if others:
            raise ValueError(f"{', '.join(others)}: not matrices; expected {', '.join(sorted(MATRICES))}")
        return roles

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the tensor has one of the roles and all axes, and is not trained as a whole."""
        return self.freezes(spec) and spec.role in self.roles and set(self.axes) <= set(spec.axes)

    def freezes(self, spec: ParamSpec) -> bool:
        """Return True for all parameters but those of a new head, which are trained as a whole."""
        return not set(self.trains) & set(spec.axes)

    def has_no_effect_on(self, spec: ParamSpec) -> bool:
        """Return False, because the change moves matrices on a sphere as well."""
        return False

    def choose(self, parameters: list[Declared]) -> tuple[set[str], list[Declared]]:
        """Return the names of the matrices to change.

        Raises:
            ConfigError: No matrix has one of the roles and all axes.
        """
        chosen, without_effect = super().choose(parameters)
        if not chosen:
            known = sorted(
                {f"{p.spec.role} {list(p.spec.axes)}" for p in parameters if p.spec.role in MATRICES}
            )
            raise ConfigError(
                f"reparam: lora with roles {[str(r) for r in self.roles]}, axes {list(self.axes)} "
                f"matches no matrix; there are: {'; '.join(known)}"
            )
        return chosen, without_effect

    def check(self, p: Declared) -> None:
        """Refuse a matrix that is no stack of rows."""
        require_rows_first(p, self.type)

    def attach(self, p: Declared, init: Init) -> None:
        """Declare A and B, see `attach_low_rank`."""
        attach_low_rank(p, init, self.rank, self.alpha)


def added_names(name: str) -> tuple[str, str]:
    """The names of A and B of a matrix."""
    return f"{name}_down", f"{name}_up"


def attach_low_rank(p: Declared, init: Init, rank: int, alpha: float) -> None:
    """Declare A, which starts from the scheme, and B, which starts at zero: the outputs start unchanged.

    The eta of B is such that alpha / rank B A has the eta of the matrix.

    Args:
        p: the matrix.
        init: the scheme of the model.
        rank: number of rows of A.
        alpha: the change is alpha / rank B A.
    """
    module, name, spec = p.module, p.local, p.spec
    n = spec.fan_in_size
    down, up = added_names(name)
    columns = "_".join(spec.fan_in)
    range_up = virtual_eta(spec) * math.sqrt(n) * rank / alpha
    module.param(down, ParamSpec(Role.LINEAR, (rank, n), ("rank", columns), fan_in=(columns,)))
    module.param(
        up,
        ParamSpec(
            Role.LINEAR,
            (spec.rows, rank),
            (spec.row_axis, "rank"),
            fan_in=("rank",),
            output_std=range_up,
            start=0.0,
        ),
    )
    module.reparameterised[name] = LowRank(
        down, up, alpha / rank, spec.sphere_dim, lookup=tied_lookup_scale(p, init)
    )
