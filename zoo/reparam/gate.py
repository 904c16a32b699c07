"""The gate: one factor in front of a whole tensor, trained or fixed.

WeSaR's gate, its fixed-gate ablation, embedding scaling and residual scaling are all this.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from zoo.spec import Module, ParamSpec, Role


@dataclass(frozen=True)
class Gate:
    """virtual = gate * W.

    Attributes:
        start: the factor at the start; all there is when the gate is fixed.
        parameter: local name of the trained gate, or None when it is fixed.
        lookup: a fixed factor on the vectors looked up in a table that is also a read-out.
    """

    start: float
    parameter: str | None = None
    lookup: float = 1.0

    def factor(self, module: Module) -> Tensor | float:
        """The gate, (1,) or a number."""
        return self.start if self.parameter is None else getattr(module, self.parameter)

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """The virtual tensor, of the shape of `weight`."""
        factor = self.factor(module)
        return weight if isinstance(factor, float) and factor == 1.0 else weight * factor

    def rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """The rows `index` of the virtual table, times the lookup factor."""
        return F.embedding(index, weight) * (self.factor(module) * self.lookup)


def attach(module: Module, name: str, gate_start: float, *, trained: bool, lookup: float = 1.0) -> None:
    """Put a gate in front of the parameter `name` and declare what is trained from now on.

    Args:
        module: the owner of the parameter.
        name: its local name.
        gate_start: the factor at the start.
        trained: whether the gate is a parameter, declared with role `gate`.
        lookup: see `Gate`.
    """
    gate_name = f"{name}_gate" if trained else None
    module.reparameterised[name] = Gate(gate_start, gate_name, lookup)
    module.specs[name] = module.specs[name].scaled_by(gate_start)
    if gate_name is not None:
        module.param(gate_name, ParamSpec(Role.GATE, shape=(1,), axes=("gate",), start=gate_start))


def detach(module: Module, name: str) -> None:
    """Remove the gate of `name` with its declaration, leaving the parameter as it is."""
    gate = module.reparameterised.pop(name)
    assert isinstance(gate, Gate)
    module.specs[name] = module.specs[name].scaled_by(1.0)
    if gate.parameter is not None:
        module.drop_param(gate.parameter)
    if gate.lookup != 1.0:
        attach(module, name, 1.0, trained=False, lookup=gate.lookup)
