"""Parameter declarations: the properties of every parameter are stated once.

Amos' eta and shared slots, the standard deviation at initialisation, WeSaR's gate, nGPT's sphere, weight
decay and the report are pure functions of a `ParamSpec`. Modules create parameters only through
`Module.param`, which records the spec *on the module* under the parameter's local name, because attributes
of a tensor would be lost by ``deepcopy``, ``to_empty`` and ``fully_shard``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.utils.errors import ConfigError


class Role(StrEnum):
    """The role of a parameter in its layer."""

    LINEAR = "linear"
    CONV = "conv"
    EMBEDDING = "embedding"
    POSITION = "position"
    NORM_SCALE = "norm_scale"
    BIAS = "bias"
    SCALING = "scaling"
    GATE = "gate"


MATRICES = frozenset({Role.LINEAR, Role.CONV, Role.EMBEDDING})
OUTPUT_AXES = frozenset({"vocab", "classes"})
"""Axes of a model's outputs; a kernel with such rows is its head."""

WHOLE = "whole"
"""`ParamSpec.sphere` of a matrix that keeps its norm as one vector, the Frobenius norm (Hyperball)."""

MAX_ENTRIES = 2**50
"""Largest number of entries of a parameter; no memory holds more, and their bytes fit into an int64."""


@dataclass(frozen=True)
class WidthPowers:
    """The powers of the model's width that constants of a layer are proportional to; 0: they have no width.

    Rules that transfer settings from one width to another (`zoo.init.transfer`) need them.

    Attributes:
        input_std: the power of `ParamSpec.input_std`.
        output_std: the power of `ParamSpec.output_std`.
        lookup_std: the power of `ParamSpec.lookup_std`.
        lookups: the power of the constant that a model multiplies the vectors of a table by.
        logits: the power of the constant that a model multiplies the input of the head by, if the head is the
            table.
        start: the power of `ParamSpec.start` of a scaling, by which the layer divides the trained value.
    """

    input_std: float = 0.0
    output_std: float = 0.0
    lookup_std: float = 0.0
    lookups: float = 0.0
    logits: float = 0.0
    start: float = 0.0


NO_POWERS = WidthPowers()


@dataclass(frozen=True)
class ParamSpec:
    """All properties of a parameter that the methods of the three papers depend on.

    Attributes:
        role: the role of the parameter in its layer.
        shape: its shape, in torch's layout: ``(out, in)`` for a linear kernel.
        axes: a name for every dimension; all names are different, so that a name is never ambiguous.
        fan_in: the axes that are summed over when the parameter is applied; for an embedding, the axis that
            a language model head would sum over.
        input_std: standard deviation of the layer's input (Amos, Table 1).
        output_std: standard deviation that the layer's output should have.
        lookup_std: standard deviation that the entries of the vectors of an embedding should have where they
            are looked up and the scheme scales them (WeSaR, Table 1); None: it is `output_std`.
        residual_branches: 2N if the parameter ends a residual branch of a model with N layers of two
            branches each, otherwise 1.
        tied: whether the parameter is an embedding that also serves as the language model head; `input_std`
            and `output_std` are then those of the head.
        start: the constant that a scaling vector, a gate or a matrix that is not random is initialised with.
        target: the value that a scaling should reach, if its layer declares one; a short run may not reach
            it.
        sphere: the vectors whose norm is kept: the axis along which nGPT keeps every vector at unit norm, or
            `WHOLE` for all entries as one vector, which keeps its initial norm (set by `zoo.optim.hyperball`,
            not by layers).
        normalised: whether the layer's output is normalised next, so that the overall scale of the parameter
            has no effect.
        rescaled: whether a trained scaling multiplies the layer's output next, so that another trained factor
            of the whole parameter would duplicate it.
        scale: the factor by which a reparameterisation multiplies the parameter at the start; the trained
            tensor is smaller by it. Set by `zoo.reparam`, not by layers.
        parts: axes that consist of equal parts, with the number of parts: the heads of a projection, or
            experts. Each part is a matrix of its own.
        decays: whether weight decay acts on a gate; on matrices it always does.
        clipped: whether the gradient counts in the global norm that clipping limits, and is clipped.
        frozen: whether the parameter is not trained. Set by `Module.freeze` (LoRA, the `freeze` of a run),
            not by layers.
        powers: which constants of the layer depend on the width of the model.

    Raises:
        ValueError: The axes do not match the shape, or a name is repeated or unknown.
        ConfigError: The parameter has more entries than any memory holds.
    """

    role: Role
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    fan_in: tuple[str, ...] = ()
    input_std: float = 1.0
    output_std: float = 1.0
    lookup_std: float | None = None
    residual_branches: int = 1
    tied: bool = False
    start: float | None = None
    target: float | None = None
    sphere: str | None = None
    normalised: bool = False
    rescaled: bool = False
    scale: float = 1.0
    parts: tuple[tuple[str, int], ...] = ()
    decays: bool = False
    clipped: bool = True
    frozen: bool = False
    powers: WidthPowers = NO_POWERS

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise ValueError(f"{len(self.shape)} dimensions {self.shape}, but axes {self.axes}")
        if self.numel > MAX_ENTRIES:
            sizes = ", ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.shape, strict=True))
            raise ConfigError(f"model: a parameter of {sizes}; expected at most 2^50 entries")
        if len(set(self.axes)) != len(self.axes):
            raise ValueError(f"axes must all be different, got {self.axes}")
        if WHOLE in self.axes:
            raise ValueError(f"an axis cannot be called '{WHOLE}', which names a kind of sphere")
        for axis in (*self.fan_in, *([self.sphere] if self.sphere not in (None, WHOLE) else [])):
            if axis not in self.axes:
                raise ValueError(f"axis '{axis}' is not one of {self.axes}")
        for axis, count in self.parts:
            if axis not in self.axes or count < 1 or self.size(axis) % count:
                raise ValueError(f"'{axis}': {count} parts; axes {self.axes} of {self.shape}")
        if self.role in (Role.SCALING, Role.GATE) and self.start is None:
            raise ValueError(f"a {self.role} needs a start")

    def size(self, axis: str) -> int:
        """The length of the named axis."""
        return self.shape[self.axes.index(axis)]

    def dims(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The tensor dimensions of the named axes, in the order of the tensor."""
        return tuple(i for i, axis in enumerate(self.axes) if axis in axes)

    @property
    def is_kernel(self) -> bool:
        """Whether inputs are multiplied by the parameter: a table is a kernel only if it is also the head."""
        return self.role in (Role.LINEAR, Role.CONV) or self.tied

    @property
    def fan_in_size(self) -> int:
        """The number of terms in the sum over the `fan_in` axes; 1 if there are none."""
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
        """The spec of the trained tensor when a reparameterisation multiplies it by `scale`."""
        return replace(self, scale=scale)

    @property
    def numel(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def sphere_dim(self) -> int | None:
        """The tensor dimension along which vectors have unit norm, or None."""
        return None if self.sphere in (None, WHOLE) else self.axes.index(self.sphere)

    @property
    def keeps_norm(self) -> bool:
        """Whether the whole tensor keeps its initial norm."""
        return self.sphere == WHOLE


@dataclass(frozen=True, kw_only=True)
class Reparameterisation:
    """Computes the tensor that a module uses (the virtual tensor) from the tensors that are trained.

    An instance holds names and numbers but no tensors: these belong to the module and may be replaced there.
    What it returns may be more precise than the trained tensor, for instance because it multiplies a bfloat16
    tensor by a float32 one; `Module` rounds it to the dtype of the trained tensor.

    Attributes:
        lookup: a fixed factor of the vectors that are looked up in a table tied to the head.
    """

    lookup: float = 1.0

    @property
    def added(self) -> tuple[str, ...]:
        """Local names of the parameters and buffers that were added to the module."""
        raise NotImplementedError

    is_product: ClassVar[bool] = False
    """Whether the virtual tensor is proportional to each row of the trained one."""

    @property
    def sides(self) -> frozenset[str]:
        """The sides of the matrix, "rows" and "columns", that have trained factors."""
        return frozenset()

    @property
    def row_norms(self) -> str | None:
        """Local name of the parameter of the norms of the virtual tensor's rows; None: there is none."""
        return None

    def __call__(self, module: Module, weight: Tensor) -> Tensor:
        """The virtual tensor, of the shape of `weight`."""
        raise NotImplementedError

    def factored(self, module: Module, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """A tensor, and a factor (1,) or None, whose product is the virtual tensor."""
        return self(module, weight), None

    def gradient_factor(self, module: Module) -> Tensor | float | None:
        """The ratio of the gradients of the trained and of the virtual tensor; None if it is no number."""
        return None

    def virtual_rows(self, module: Module, weight: Tensor, index: Tensor) -> Tensor:
        """The rows `index` of the virtual tensor: (*index.shape, row size)."""
        raise NotImplementedError

    def initialise(self, module: Module, name: str) -> None:
        """Initialise the added parameters and buffers whose start depends on the initial value of `name`."""

    def after_step(self, module: Module, name: str) -> None:
        """Update the buffers that are measured on the parameter `name`, after an optimizer step."""

    def rescale(self, module: Module, name: str, scale: float) -> None:
        """Set `ParamSpec.scale` of the parameter `name` in a model that was split."""
        module.specs[name] = module.specs[name].scaled_by(scale)


TensorSides = tuple[tuple[str, Literal["rows", "columns", "entries"]], ...]
"""Paths of parameters in a module, each with the entries that a factor belongs to."""

ScalePair = tuple[TensorSides, TensorSides]
"""Sides of tensors that can be multiplied by a common factor, and those multiplied by its inverse."""


class Module(nn.Module):
    """A module whose parameters are declared.

    `param` creates an uninitialised parameter and records its spec. `virtual` returns the tensor that the
    layer computes with, which is the parameter itself unless it is reparameterised.

    Attributes:
        specs: the declaration of every parameter of this module, by its local name.
        buffer_starts: the initial value of every buffer of this module, by its local name.
        averaged_buffers: local names of the buffers that are averaged over ranks.
        run_buffers: local names of the buffers that belong to a run, and not to what it has learnt.
        reparameterised: the reparameterisation of every reparameterised parameter, by its local name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[str, ParamSpec] = {}
        self.buffer_starts: dict[str, float | Literal["unit"]] = {}
        self.averaged_buffers: list[str] = []
        self.run_buffers: list[str] = []
        self.reparameterised: dict[str, Reparameterisation] = {}

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The stacked layers, in the order in which they are applied; `Declared.depth` counts them."""
        return ()

    def follows_step(self) -> bool:
        """Whether `after_step` has to be called after every optimizer step; evaluated once, before the first.

        Raises:
            ConfigError: The change that `after_step` makes is impossible in this configuration.
        """
        return False

    def after_step(self) -> None:
        """Change parameters or buffers of this module after an optimizer step."""

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """Pairs of sides of tensors between which a factor can move without a change of the outputs."""
        return ()

    def param(self, name: str, spec: ParamSpec) -> None:
        """Create the parameter `name`, float32 and uninitialised, and record its declaration.

        Args:
            name: local name, which becomes an attribute of this module.
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
        """Exclude the parameter `name` from training, or include it again."""
        self.specs[name] = replace(self.specs[name], frozen=frozen)
        self.get_parameter(name).requires_grad_(not frozen)

    def buffer(
        self,
        name: str,
        shape: tuple[int, ...],
        start: float | Literal["unit"],
        average: bool = False,
        of_run: bool = False,
    ) -> None:
        """Create the buffer `name`, float32 and uninitialised; buffers are measured, not trained.

        Buffers are saved with the weights.

        Args:
            name: local name, which becomes an attribute of this module.
            shape: shape of the buffer, () for a number.
            start: the constant that the buffer is initialised with, or "unit" for a random vector of unit
                norm.
            average: whether the buffer is an average over examples; ranks, which see different examples,
                then exchange their means.
            of_run: whether the buffer is about where a run is in its data. It is restored with the run,
                and has its initial value in another run that starts from the checkpoint.
        """
        self.register_buffer(name, torch.empty(shape, dtype=torch.float32))
        self.buffer_starts[name] = start
        if average:
            self.averaged_buffers.append(name)
        if of_run:
            self.run_buffers.append(name)

    def virtual(self, name: str) -> Tensor:
        """The tensor that the layer computes with for `name`: the parameter, or its reparameterisation.

        It has the parameter's dtype, so that the layer computes in the same precision with a
        reparameterisation, whose own tensors may be float32 beside a bfloat16 parameter.
        """
        weight: Tensor = getattr(self, name)
        reparameterisation = self.reparameterised.get(name)
        return weight if reparameterisation is None else reparameterisation(self, weight).to(weight.dtype)

    def factored(self, name: str) -> tuple[Tensor, Tensor | None]:
        """A tensor of the parameter's dtype, and a factor (1,) or None, whose product is `virtual(name)`."""
        weight: Tensor = getattr(self, name)
        reparameterisation = self.reparameterised.get(name)
        if reparameterisation is None:
            return weight, None
        tensor, factor = reparameterisation.factored(self, weight)
        return tensor.to(weight.dtype), factor

    def virtual_rows(self, name: str, index: Tensor) -> Tensor:
        """The rows `index` of `virtual(name)`, without computing all of it.

        Args:
            name: local name of a (rows, width) parameter.
            index: int64 tensor of any shape.

        Returns:
            (*index.shape, width), of the parameter's dtype.
        """
        weight: Tensor = getattr(self, name)
        reparameterisation = self.reparameterised.get(name)
        if reparameterisation is None:
            return F.embedding(index, weight)
        return reparameterisation.virtual_rows(self, weight, index).to(weight.dtype)


@dataclass(frozen=True)
class Declared:
    """A declared parameter of a model, and its location.

    Attributes:
        name: full name in the model.
        module: the module that holds the parameter.
        local: name of the parameter in this module.
        spec: the declaration.
        depth: 0 in front of the L layers of the model, 1 to L in the layers, L + 1 behind them, in the order
            in which modules were created. A module between two layers has the depth of the first.
    """

    name: str
    module: Module
    local: str
    spec: ParamSpec
    depth: int = 0

    @property
    def parameter(self) -> nn.Parameter:
        """The tensor at the time of the call; sharding replaces it."""
        return self.module.get_parameter(self.local)


def declared(model: nn.Module) -> Iterator[Declared]:
    """Yield every parameter of `model` with its declaration, in the order of the modules.

    Raises:
        ValueError: Parameters lack a declaration, or declarations lack a parameter; the message names all of
            them.
    """
    parameters: list[Declared] = []
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
            parameters += [Declared(prefix + n, module, n, s, depth) for n, s in specs.items()]
    if missing or stale:
        problems = [f"no declaration for: {', '.join(missing)}"] if missing else []
        problems += [f"no parameter for the declaration of: {', '.join(stale)}"] if stale else []
        hint = "; expected parameters of zoo.Module, from self.param(name, spec)" if missing else ""
        raise ValueError(f"{type(model).__name__}: {'; '.join(problems)}{hint}")
    yield from parameters


def reduced_shape(shape: Sequence[int], dims: Container[int]) -> tuple[int, ...]:
    """Return the shape of a mean over `dims` that keeps these dimensions, with size 1."""
    return tuple(1 if dim in dims else size for dim, size in enumerate(shape))
