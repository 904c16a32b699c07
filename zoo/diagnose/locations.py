"""The layer of a parameter, and its name within the layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zoo.models import Model
from zoo.spec import Declared, Module, ParamSpec, declared


@dataclass(frozen=True)
class ParameterLocation:
    """A declared parameter and its position in the model.

    Attributes:
        parameter: the declaration, and the module that holds the tensor.
        layer: number of the block in `Model.fsdp_units`, from 1 (an encoder-decoder's decoder follows its
            encoder); 0 for parameters outside of the blocks.
        label: the name within the layer, which is the same in all layers; in layer 0, the name within the
            model.
        added: whether a reparameterisation added the parameter (WeSaR's gate, the two factors of LoRA).
    """

    parameter: Declared
    layer: int
    label: str
    added: bool

    @property
    def name(self) -> str:
        """The full name in the model."""
        return self.parameter.name

    @property
    def spec(self) -> ParamSpec:
        """The declaration of role, shape and axes."""
        return self.parameter.spec

    @property
    def module(self) -> Module:
        """The module that holds the parameter."""
        return self.parameter.module

    def virtual(self) -> Tensor:
        """The virtual tensor, with which the layer computes, detached."""
        return self.module.virtual(self.parameter.local).detach()


def locate_parameters(model: Model) -> list[ParameterLocation]:
    """The location of every parameter, in the order of the modules."""
    inside = {module: path for block in model.fsdp_units for path, module in block.named_modules()}
    paths = {module: path for path, module in model.named_modules()} | inside
    return [
        ParameterLocation(
            parameter,
            parameter.depth if parameter.module in inside else 0,
            _label(parameter, paths[parameter.module]),
            parameter.local in _added_names(parameter.module),
        )
        for parameter in declared(model)
    ]


def _added_names(module: Module) -> set[str]:
    """The local names of the parameters that reparameterisations have added to a module."""
    return {name for method in module.reparameterised.values() for name in method.added}


def _label(parameter: Declared, path: str) -> str:
    """The path of the module, with the local name if the module itself declares several parameters."""
    is_only = parameter.module.specs.keys() - _added_names(parameter.module) == {parameter.local}
    return path if path and is_only else f"{path}.{parameter.local}" if path else parameter.local
