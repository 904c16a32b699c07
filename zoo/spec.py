"""The declaration: a parameter says once what it is.

Amos' eta, the standard deviation at initialisation, WeSaR's gate, Amos' shared slots, nGPT's
sphere, weight decay and the report are pure functions of a `ParamSpec`. Modules create parameters
only through `Module.param`, which records the spec *on the module* under the local name: facts
kept on a tensor would be lost by ``deepcopy``, ``to_empty`` and ``fully_shard``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.utils.errors import ConfigError


class Role(StrEnum):
    """What a parameter is to the layer that owns it."""

    LINEAR = "linear"
    CONV = "conv"
    EMBEDDING = "embedding"
    POSITION = "position"
    NORM_SCALE = "norm_scale"
    BIAS = "bias"
    SCALING = "scaling"
    GATE = "gate"


MATRICES = frozenset({Role.LINEAR, Role.CONV, Role.EMBEDDING})
MOST = 2**50
"""Entries of a parameter: more than any memory has, and few enough for their bytes to be counted."""


@dataclass(frozen=True)
class ParamSpec:
    """Everything the techniques of the three papers need to know about one parameter.

    Attributes:
        role: what the parameter is.
        shape: its shape, in torch's layout: ``(out, in)`` for a linear kernel.
        axes: a name for every dimension; all different, so that "the axis of size d_model" is
            never ambiguous.
        fan_in: the axes that are summed over when the parameter is applied; for an embedding, the
            axis a read-out would sum over.
        input_std: standard deviation of what the layer is given (Amos, Table 1).
        output_std: standard deviation of what the layer should give.
        residual_branches: 2N when the parameter ends a residual branch of a model with N layers
            of two branches each, otherwise 1.
        tied: an embedding that also serves as the read-out; `input_std` and `output_std` are then
            the read-out's.
        start: the constant that a scaling vector, a gate or a matrix that is not drawn starts from.
        sphere: the axis along which nGPT keeps every vector at unit norm.
        normalised: what the layer gives is normalised next, so that the parameter's overall scale
            has no effect.
        scale: the factor a reparameterisation multiplies the parameter by at the start; what is
            trained is smaller by it. Set by `zoo.reparam`, not by layers.
        frozen: not trained. Set by `Module.freeze` (LoRA, the `freeze` of a run), not by layers.

    Raises:
        ValueError: axes that do not match the shape, repeat, or do not exist.
        ConfigError: more entries than any memory has.
    """

    role: Role
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    fan_in: tuple[str, ...] = ()
    input_std: float = 1.0
    output_std: float = 1.0
    residual_branches: int = 1
    tied: bool = False
    start: float | None = None
    sphere: str | None = None
    normalised: bool = False
    scale: float = 1.0
    frozen: bool = False

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise ValueError(f"{len(self.shape)} dimensions {self.shape}, but axes {self.axes}")
        if self.numel > MOST:
            sizes = ", ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.shape, strict=True))
            raise ConfigError(f"model: a parameter of {sizes}; expected at most 2^50 entries")
        if len(set(self.axes)) != len(self.axes):
            raise ValueError(f"axes must all be different, got {self.axes}")
        for axis in (*self.fan_in, *([self.sphere] if self.sphere else [])):
            if axis not in self.axes:
                raise ValueError(f"axis '{axis}' is not one of {self.axes}")
        if self.role in (Role.SCALING, Role.GATE) and self.start is None:
            raise ValueError(f"a {self.role} needs a start")

    def size(self, axis: str) -> int:
        """The length of the named axis."""
        return self.shape[self.axes.index(axis)]

    def dims(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The tensor dimensions of the named axes, in the order of the tensor."""
        return tuple(i for i, axis in enumerate(self.axes) if axis in axes)

    @property
    def fan_in_size(self) -> int:
        """The number of terms in the sum that the parameter takes part in (1 without one)."""
        return math.prod(self.size(axis) for axis in self.fan_in)

    @property
    def rows(self) -> int:
        """The number of rows of a matrix, each of `fan_in_size` entries."""
        return self.numel // self.fan_in_size

    @property
    def row_axis(self) -> str:
        """The name of the axis that counts the rows."""
        return "_".join(axis for axis in self.axes if axis not in self.fan_in)

    def scaled_by(self, scale: float) -> ParamSpec:
        """The declaration of what is trained when a factor stands in front of it."""
        return replace(self, scale=scale)

    @property
    def numel(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def sphere_dim(self) -> int | None:
        """The tensor dimension of the sphere, or None."""
        return None if self.sphere is None else self.axes.index(self.sphere)


@dataclass(frozen=True, kw_only=True)
class Reparameterisation:
    """How a module turns what is trained into the tensor that it uses.

    It holds names and numbers, no tensors: those live on the module and may be replaced there.

    Attributes:
        lookup: a fixed factor on the vectors looked up in a table that is also a read-out.
    """

    lookup: float = 1.0

    @property
    def added(self) -> tuple[str, ...]:
        """Local names of the parameters and buffers that it has added to the module."""
        raise NotImplementedError

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """The virtual tensor, of the shape of `weight`."""
        raise NotImplementedError

    def factored(self, module: Module, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """A tensor and a factor (1,) whose product is the virtual tensor; None: there is no factor."""
        return self(module, weight), None

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """The rows `index` of the virtual tensor: (*index.shape, row size)."""
        raise NotImplementedError

    def initialise(self, module: Module, name: str) -> None:
        """Once everything is drawn: fill what starts from the value of the parameter `name`."""

    def after_step(self, module: Module, name: str) -> None:
        """Once per optimizer step, after it: measure the new value of the parameter `name`."""

    def rescale(self, module: Module, name: str, scale: float) -> None:
        """Declare another `ParamSpec.scale` of the parameter `name`: that of a model that was split."""
        module.specs[name] = module.specs[name].scaled_by(scale)


class Module(nn.Module):
    """A module whose parameters are declared.

    `param` makes an (uninitialised) parameter and records its spec; `virtual` gives the tensor
    that the layer computes with, which is the parameter itself unless it was reparameterised.
    """

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[str, ParamSpec] = {}
        self.buffer_starts: dict[str, float | Literal["unit"]] = {}
        self.averaged_buffers: list[str] = []
        self.reparameterised: dict[str, Reparameterisation] = {}

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers stacked in it, in the order in which it passes through them: depth counts them."""
        return ()

    def param(self, name: str, spec: ParamSpec) -> None:
        """Create the parameter `name`, float32 and uninitialised, and record what it is.

        Args:
            name: local name, one attribute of this module.
            spec: the declaration.
        """
        self.register_parameter(name, nn.Parameter(torch.empty(spec.shape, dtype=torch.float32)))
        self.specs[name] = spec

    def drop(self, name: str) -> None:
        """Remove the parameter or buffer `name` and its declaration."""
        delattr(self, name)
        self.specs.pop(name, None)
        self.buffer_starts.pop(name, None)

    def freeze(self, name: str, frozen: bool = True) -> None:
        """Declare that the parameter `name` is not trained, or is again."""
        self.specs[name] = replace(self.specs[name], frozen=frozen)
        self.get_parameter(name).requires_grad_(not frozen)

    def buffer(
        self, name: str, shape: tuple[int, ...], start: float | Literal["unit"], average: bool = False
    ) -> None:
        """Create the buffer `name`, float32 and uninitialised: state that is measured, not trained.

        It is saved with the weights.

        Args:
            name: local name, one attribute of this module.
            shape: its shape, () for a number.
            start: the constant it is filled with, or "unit" for a random vector of unit norm.
            average: it is an average over examples; of several ranks, which see different ones, each gets
                the mean of all.
        """
        self.register_buffer(name, torch.empty(shape, dtype=torch.float32))
        self.buffer_starts[name] = start
        if average:
            self.averaged_buffers.append(name)

    def virtual(self, name: str) -> Tensor:
        """The tensor the layer uses for `name`: the parameter, or what it stands for."""
        weight: Tensor = getattr(self, name)
        reparameterisation = self.reparameterised.get(name)
        return weight if reparameterisation is None else reparameterisation(self, weight)

    def factored(self, name: str) -> tuple[Tensor, Tensor | None]:
        """`virtual(name)` as a tensor and a factor (1,) in front of it; None: there is none."""
        weight: Tensor = getattr(self, name)
        reparameterisation = self.reparameterised.get(name)
        return (weight, None) if reparameterisation is None else reparameterisation.factored(self, weight)

    def virtual_rows(self, name: str, index: Tensor) -> Tensor:
        """The rows `index` of `virtual(name)`, without forming all of it.

        Args:
            name: local name of a (rows, width) parameter.
            index: int64 tensor of any shape.

        Returns:
            (*index.shape, width).
        """
        weight: Tensor = getattr(self, name)
        reparameterisation = self.reparameterised.get(name)
        if reparameterisation is None:
            return F.embedding(index, weight)
        return reparameterisation.virtual_rows(self, weight, index)


@dataclass(frozen=True)
class Declared:
    """One declared parameter of a model: where it lives and what it is.

    Attributes:
        name: full name in the model.
        module: its owner.
        local: its name there.
        spec: the declaration.
        depth: 0 in front of the L layers of the model, 1 to L in them, L + 1 behind; what stands between
            two layers has the depth of the first. Of modules in the order in which they were made.
    """

    name: str
    module: Module
    local: str
    spec: ParamSpec
    depth: int = 0

    @property
    def parameter(self) -> nn.Parameter:
        """The tensor as it is now (a sharded model replaces it)."""
        return self.module._parameters[self.local]  # type: ignore[return-value]


def declared(model: nn.Module) -> Iterator[Declared]:
    """Yield every parameter of `model` with its declaration, in the order of the modules.

    Raises:
        ValueError: parameters without a declaration or declarations without a parameter; the
            message names all of them.
    """
    found: list[Declared] = []
    missing: list[str] = []
    stale: list[str] = []
    layers = model.layers if isinstance(model, Module) else ()
    within = {module: i for i, layer in enumerate(layers, 1) for module in layer.modules()}
    passed = 0
    for path, module in model.named_modules():
        passed = max(passed, within.get(module, 0))
        behind = bool(layers) and passed == len(layers)
        depth = within.get(module, passed + behind)
        specs = module.specs if isinstance(module, Module) else {}
        prefix = f"{path}." if path else ""
        missing += [prefix + n for n, p in module._parameters.items() if p is not None and n not in specs]
        stale += [prefix + n for n in specs if module._parameters.get(n) is None]
        if isinstance(module, Module):
            found += [Declared(prefix + n, module, n, s, depth) for n, s in specs.items()]
    if missing or stale:
        problems = [f"no declaration for: {', '.join(missing)}"] if missing else []
        problems += [f"no parameter for the declaration of: {', '.join(stale)}"] if stale else []
        raise ValueError(f"{type(model).__name__}: {'; '.join(problems)}")
    yield from found
