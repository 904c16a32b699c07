"""Learnable multipliers: trained factors of a matrix, of its rows or its columns (arXiv 2601.04890).

Noise and weight decay fix the norm that an optimizer gives to a matrix; a trained factor frees its scale.
WeSaR is the kind `scalar` with another start: sigma of the scheme over a common one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from zoo.config.registry import REPARAMS
from zoo.init.schemes import Init
from zoo.reparam.base import Reparam, tied_lookup_scale
from zoo.spec import MATRICES, OUTPUT_AXES, Declared, Module, ParamSpec, Reparameterisation, Role
from zoo.utils.errors import ConfigError
from zoo.utils.printable import first_few


@dataclass(frozen=True)
class Multiplied(Reparameterisation):
    """virtual_ij = fixed r_i W_ij c_j (equations 2 and 3).

    Attributes:
        factors: local name of each trained factor, and the dimensions of the matrix that it spans.
        fixed: the embedding scaling of the scheme.
    """

    is_product: ClassVar[bool] = True

    factors: tuple[tuple[str, tuple[int, ...]], ...]
    fixed: float = 1.0

    @property
    def added(self) -> tuple[str, ...]:
        """Return the names of the factors."""
        return tuple(name for name, _ in self.factors)

    @property
    def sides(self) -> frozenset[str]:
        """Return the sides that have factors; a single factor of all entries counts for both sides."""
        names = (
            {"rows", "columns"}
            if self.scalar
            else {"rows" if 0 in dims else "columns" for _, dims in self.factors}
        )
        return frozenset(names)

    @property
    def scalar(self) -> bool:
        """Return whether there is one factor of all entries."""
        return all(not dims for _, dims in self.factors)

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """Return the virtual tensor, of the shape of `weight`."""
        product = None if self.fixed == 1.0 else weight * self.fixed
        for name, dims in self.factors:
            shape = [size if d in dims else 1 for d, size in enumerate(weight.shape)]
            factor = getattr(module, name).view(shape)
            product = (weight if product is None else product) * factor
        return weight if product is None else product

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """Return the rows `index` of the virtual table, times the lookup factor."""
        rows = F.embedding(index, weight) * (self.fixed * self.lookup)
        for name, dims in self.factors:
            factor = getattr(module, name)
            rows = rows * (F.embedding(index, factor.unsqueeze(1)) if 0 in dims else factor)
        return rows

    def rescale(self, module: Module, name: str, scale: float) -> None:
        """Take the scale as the fixed factor."""
        super().rescale(module, name, scale)
        module.reparameterised[name] = replace(self, fixed=scale)


@REPARAMS.register
class Multipliers(Reparam):
    """Trained factors of every matrix but the read-out, of rows and columns (arXiv 2601.04890)."""

    method_family: ClassVar[str] = "factors"
    method_source: ClassVar[str] = "arXiv 2601.04890"

    type: Literal["multipliers"] = "multipliers"
    needs_scale: ClassVar[bool] = False
    kind: Literal["scalar", "row", "column", "both"] = Field(
        "both", description="one factor, one for each row, for each column, or for both (the paper)"
    )
    read_out: bool = Field(False, description="on the head as well; rows of it hurt (section 4.4)")
    decays: bool = Field(False, description="the optimizer's weight decay acts on the factors, towards 0")
    clipped: bool = Field(False, description="the factors' gradients count in the clip norm and are clipped")
    skip_normalised: bool = Field(
        False, description="leave out matrices whose output is normalised next instead of refusing them"
    )

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the tensor is a matrix that has factors."""
        is_read_out = spec.tied or (spec.role is Role.LINEAR and not OUTPUT_AXES.isdisjoint(spec.axes))
        return spec.role in MATRICES and (self.read_out or not is_read_out)

    def has_no_effect_on(self, spec: ParamSpec) -> bool:
        """Return whether a normalisation cancels the common factor of the matrix."""
        return spec.normalised and spec.role is not Role.EMBEDDING

    def choose(self, parameters: list[Declared]) -> tuple[set[str], list[Declared]]:
        """Return the names of the matrices that get factors.

        Raises:
            ConfigError: The output of a matrix is normalised next, or no matrix is left.
        """
        chosen, without_effect = super().choose(parameters)
        if without_effect and not self.skip_normalised:
            names = first_few([p.name for p in without_effect])
            raise ConfigError(
                f"reparam: multipliers on {names}, whose output is normalised next: their common "
                "factor has no effect; expected `skip_normalised: true`, which leaves them out"
            )
        if not chosen:
            raise ConfigError("reparam: multipliers find no matrix whose factors have an effect")
        return chosen, without_effect

    def _warning(self, without_effect: list[Declared]) -> str:
        return f"reparam 'multipliers': nothing on {len(without_effect)} matrices, whose output is normalised"

    def attach(self, p: Declared, init: Init) -> None:
        """Declare the factors, which start at 1.

        The embedding scaling of the scheme, if there is one, stays a fixed factor.
        """
        module, name, spec = p.module, p.local, p.spec
        outside = tuple(axis for axis in spec.axes if axis not in spec.fan_in)
        sides = {"row": [outside], "column": [spec.fan_in], "both": [outside, spec.fan_in]}
        spans: list[tuple[str, ...]] = sides.get(self.kind, [()])
        labels = {outside: "rows", spec.fan_in: "columns", (): "factor"}
        factors = []
        for axes in spans:
            label = f"{name}_{labels[axes]}"
            shape = tuple(spec.size(axis) for axis in axes)
            gate = ParamSpec(
                Role.GATE,
                shape=shape or (1,),
                axes=axes or ("gate",),
                start=1.0,
                decays=self.decays,
                clipped=self.clipped,
            )
            module.param(label, gate)
            factors.append((label, spec.dims(axes)))
        fixed = 1.0 if spec.tied else init.lookup_scale(spec)
        module.specs[name] = spec.scaled_by(fixed)
        lookup = tied_lookup_scale(p, init)
        module.reparameterised[name] = Multiplied(tuple(factors), fixed, lookup=lookup)
