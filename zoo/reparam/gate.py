"""The gate: one trained or fixed factor of a whole tensor.

WeSaR's gate, its ablation with fixed gates, embedding scaling and residual scaling are gates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from zoo.spec import Module, ParamSpec, Reparameterisation, Role


@dataclass(frozen=True)
class Gate(Reparameterisation):
    """virtual = gate * W.

    Attributes:
        start: the initial factor, which a fixed gate keeps.
        parameter: local name of the trained gate, or None when it is fixed.
    """

    is_product: ClassVar[bool] = True

    start: float
    parameter: str | None = None

    @property
    def added(self) -> tuple[str, ...]:
        """Return the name of the trained gate."""
        return () if self.parameter is None else (self.parameter,)

    @property
    def sides(self) -> frozenset[str]:
        """Return both sides if the gate is trained, because it is a factor of either side."""
        return frozenset() if self.parameter is None else frozenset({"rows", "columns"})

    def factor(self, module: Module) -> Tensor | float:
        """Return the gate: a tensor (1,) if it is trained, else a number."""
        return self.start if self.parameter is None else getattr(module, self.parameter)

    def gradient_factor(self, module: Module) -> Tensor | float:
        """Return the gate."""
        return self.factor(module)

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """Return the virtual tensor, of the shape of `weight`."""
        factor = self.factor(module)
        return weight if isinstance(factor, float) and factor == 1.0 else weight * factor

    def factored(self, module: Module, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the trained gate, so that the gate can be applied where it is cheapest."""
        factor = self.factor(module)
        return (weight, factor) if isinstance(factor, Tensor) else (self(module, weight), None)

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """Return the rows `index` of the virtual table, as in a merged model, times the lookup factor."""
        rows = self(module, F.embedding(index, weight))
        return rows if self.lookup == 1.0 else rows * self.lookup

    def rescale(self, module: Module, name: str, scale: float) -> None:
        """Attach a gate that starts at the scale, in the place of this one."""
        detach(module, name)
        attach_gate(module, name, scale, trained=self.parameter is not None, lookup=self.lookup)


def attach_gate(module: Module, name: str, gate_start: float, *, trained: bool, lookup: float = 1.0) -> None:
    """Multiply the parameter `name` by a gate, and declare the tensors that are trained from now on.

    Args:
        module: the owner of the parameter.
        name: its local name.
        gate_start: the initial factor.
        trained: whether the gate is a parameter, declared with role `gate`.
        lookup: the factor of embedding lookups, see `Reparameterisation`.
    """
    gate_name = f"{name}_gate" if trained else None
    module.reparameterised[name] = Gate(gate_start, gate_name, lookup=lookup)
    module.specs[name] = module.specs[name].scaled_by(gate_start)
    if gate_name is not None:
        module.param(gate_name, ParamSpec(Role.GATE, shape=(1,), axes=("gate",), start=gate_start))


def is_plain(module: Module, name: str) -> bool:
    """Return whether `name` is the tensor that is computed with; its look-ups may have a fixed factor."""
    gate = module.reparameterised.get(name)
    return gate is None or (isinstance(gate, Gate) and gate.parameter is None and gate.start == 1.0)


def detach(module: Module, name: str) -> Reparameterisation:
    """Remove and return the reparameterisation of `name`; the parameter keeps its values."""
    reparameterisation = module.reparameterised.pop(name)
    for local in reparameterisation.added:
        module.drop(local)
    module.specs[name] = module.specs[name].scaled_by(1.0)
    return reparameterisation
