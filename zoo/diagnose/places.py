"""Where a parameter is in a model: in which layer, and what it is called there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zoo.models import Model
from zoo.spec import Declared, Module, ParamSpec, declared


@dataclass(frozen=True)
class Place:
    """A declared parameter and its place.

    Attributes:
        parameter: the declaration, and where the tensor lives.
        layer: the depth of what is in one of `Model.fsdp_units`, from 1 (an encoder-decoder's decoder
            follows its encoder); 0 outside of them.
        label: its name within the layer, the same in all layers; outside, within the model.
        part: a reparameterisation makes another tensor with it (WeSaR's gate, LoRA's two factors).
    """

    parameter: Declared
    layer: int
    label: str
    part: bool

    @property
    def name(self) -> str:
        """Full name in the model."""
        return self.parameter.name

    @property
    def spec(self) -> ParamSpec:
        """What it is."""
        return self.parameter.spec

    @property
    def owner(self) -> Module:
        """The module that holds it."""
        return self.parameter.module

    def virtual(self) -> Tensor:
        """The tensor that the layer computes with, detached."""
        return self.owner.virtual(self.parameter.local).detach()


def places(model: Model) -> list[Place]:
    """Every parameter of a model, in the order of its modules."""
    inside = {module: path for block in model.fsdp_units for path, module in block.named_modules()}
    paths = {module: path for path, module in model.named_modules()} | inside
    found = []
    for p in declared(model):
        layer = p.depth if p.module in inside else 0
        found.append(Place(p, layer, _label(p, paths[p.module]), p.local in _added(p.module)))
    return found


def _added(module: Module) -> set[str]:
    """Local names of what reparameterisations have added."""
    return {local for made in module.reparameterised.values() for local in made.added}


def _label(p: Declared, path: str) -> str:
    """The module's path; with the local name where the layer has more than one parameter of its own."""
    alone = path and p.module.specs.keys() - _added(p.module) == {p.local}
    return path if alone else f"{path}.{p.local}" if path else p.local
