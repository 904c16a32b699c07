"""The registry: what init, optimizers and reports need to know of each parameter, by its declaration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, Self, overload

from pydantic import Field, model_validator
from torch import nn

from zoo.config.registry import Config
from zoo.init.schemes import RANDOM, Init, virtual_eta, virtual_std
from zoo.init.transfer import Factors
from zoo.spec import MATRICES, Declared, Module, ParamSpec, Role, declared, reduced_shape
from zoo.utils.errors import ConfigError, did_you_mean

Reduction = Literal["none", "one_axis", "dense"]
ScalingSlots = Literal["shared", "entry"]


class EtaOverride(Config):
    """Another eta, or other shared slots, for the variables with a role and axes (Amos, A.4 and A.9)."""

    role: Role = Field(description="the role of the variables")
    axes: tuple[str, ...] = Field((), description="axes that the variables must have, by name")
    eta: float | None = Field(
        None, gt=0, description="the new eta of the tensor that the layer computes with"
    )
    factor: float | None = Field(None, gt=0, description="or: multiply the derived eta")
    per: str | None = Field(
        None, description="or as `eta`: (numerator / size)^power of the axis of this name, or of `fan_in`"
    )
    numerator: float | None = Field(None, gt=0, description="the numerator of `per`; null: 1")
    power: float | None = Field(None, gt=0, description="the power of `per`; null: 1/2")
    reduce: tuple[str, ...] | None = Field(
        None, description="axes that share a slot of Amos, instead of those of `optimizer.reduction`"
    )

    @model_validator(mode="after")
    def _one_change(self) -> Self:
        changes = sum(value is not None for value in (self.eta, self.factor, self.per))
        if changes > 1 or (changes == 0 and self.reduce is None):
            raise ValueError("expected either `eta` or `factor` or `per`, or `reduce`")
        for key in ("numerator", "power"):
            if getattr(self, key) is not None and self.per is None:
                raise ValueError(f"`{key}` has no effect without `per`")
        return self

    @property
    def changes_eta(self) -> bool:
        """Whether the override changes an eta, and not only the slots."""
        return any(value is not None for value in (self.eta, self.factor, self.per))

    def matches(self, spec: ParamSpec) -> bool:
        """Return whether the override applies to the variable."""
        return spec.role is self.role and set(self.axes) <= set(spec.axes)

    def apply(self, eta: float, spec: ParamSpec) -> float:
        """Return the new value for a derived eta of the declared variable.

        The values of `eta` and `per` are about the tensor that the layer computes with. As for a derived eta,
        that of a trained tensor is smaller by the factor that a reparameterisation multiplies it by.

        Raises:
            ConfigError: The variable has no axis of the name in `per`.
        """
        if self.eta is not None:
            return _of_trained(self.eta, spec)
        if self.per is None:
            return eta * (self.factor or 1.0)
        if self.per != "fan_in":
            _require_axis("per", self.per, spec, "fan_in")
        size = spec.fan_in_size if self.per == "fan_in" else spec.size(self.per)
        return _of_trained(math.pow((self.numerator or 1.0) / size, self.power or 0.5), spec)

    def reduced(self, spec: ParamSpec) -> tuple[int, ...] | None:
        """Return the dimensions of the declared variable that share a slot; None: those of the optimizer.

        Raises:
            ConfigError: The variable has no axis of a name in `reduce`.
        """
        for axis in self.reduce or ():
            _require_axis("reduce", axis, spec)
        return None if self.reduce is None else spec.dims(self.reduce)


def _require_axis(key: str, axis: str, spec: ParamSpec, *others: str) -> None:
    if axis not in spec.axes:
        raise ConfigError(
            f"eta_overrides: {key}: no axis '{axis}' on a variable with axes {', '.join(spec.axes)}"
            f"{did_you_mean(axis, [*spec.axes, *others])}"
        )


@dataclass(frozen=True)
class Entry:
    """The properties of one parameter that optimizers, initialisations and reports read.

    Attributes:
        name: full name in the model.
        owner: the module that holds the parameter; sharding replaces the tensor, but not the module.
        local: name of the parameter on that module.
        spec: the declaration.
        eta: Amos' scale of the trained tensor.
        sigma: initial standard deviation of the trained tensor; None for constants.
        depth: 0 in front of the L layers of the model, 1 to L in the layers, L + 1 behind them, see
            `zoo.spec.Declared`.
        lr_factor: factor of the learning rate, by layer-wise decay and the transfer rule.
        wd_factor: factor of the weight decay, by the transfer rule.
        eps_factor: factor of the optimizer's eps, by the transfer rule.
        reduced: the dimensions that share an Amos slot in every mode, where the user has stated them.
        override: position of the override that applies to the parameter; None: there is none.
    """

    name: str
    owner: nn.Module
    local: str
    spec: ParamSpec
    eta: float
    sigma: float | None
    depth: int = 0
    lr_factor: float = 1.0
    wd_factor: float = 1.0
    eps_factor: float = 1.0
    reduced: tuple[int, ...] | None = None
    override: int | None = None

    @property
    def parameter(self) -> nn.Parameter:
        """The tensor that the owner holds now."""
        return self.owner.get_parameter(self.local)

    @property
    def decays(self) -> bool:
        """Whether AdamW's weight decay acts on the parameter: it acts on matrices whose norm is not fixed."""
        return (self.spec.role in MATRICES or self.spec.decays) and not self.spec.keeps_norm

    @property
    def sphere_dim(self) -> int | None:
        """The dimension nGPT normalises along, or None."""
        return self.spec.sphere_dim

    def reduce(self, mode: Reduction, scaling_slots: ScalingSlots = "entry") -> tuple[int, ...]:
        """Return the dimensions that share an Amos slot (Amos, A.8).

        Args:
            mode: `none`; `one_axis`: the input dimensions of kernels, the width of embeddings, all
                dimensions of other parameters; `dense`: all dimensions of linear kernels as well.
            scaling_slots: whether each entry of a scaling has a slot, or all share one, as in other vectors.

        Returns:
            Dimensions in increasing order; () if none is shared.
        """
        spec, everything = self.spec, tuple(range(len(self.spec.shape)))
        if self.reduced is not None:
            return self.reduced
        if mode == "none" or (spec.role is Role.SCALING and scaling_slots == "entry"):
            return ()
        if spec.role not in MATRICES or (mode == "dense" and spec.role is Role.LINEAR):
            return everything
        return spec.dims(spec.fan_in)

    def slot_shape(self, mode: Reduction, scaling_slots: ScalingSlots = "entry") -> tuple[int, ...]:
        """Return the shape of Amos' v and b: the parameter's, with 1 where it is reduced."""
        return reduced_shape(self.spec.shape, self.reduce(mode, scaling_slots))


class Registry(Sequence[Entry]):
    """The entries of the trained parameters of a model, in the order of its modules.

    Attributes:
        frozen: the parameters that are not trained.
    """

    def __init__(
        self,
        model: nn.Module,
        init: Init | None = None,
        eta_overrides: Sequence[EtaOverride] = (),
        layer_decay: float = 1.0,
        measured: Mapping[str, float] | None = None,
        rates: Callable[[Declared], Factors] | None = None,
    ) -> None:
        """Derive all entries.

        Args:
            model: a model of declared parameters.
            init: the scheme that determines `sigma`; without one, sigma is None.
            eta_overrides: other etas, by role and axes.
            layer_decay: factor of the learning rate per layer: layer_decay^(L + 1 - k) at depth k, L
                being the number of layers.
            measured: etas by name that replace the declared ones, from `zoo.init.measure`.
            rates: the factors of a transfer rule; None: there is none.

        Raises:
            ValueError: A parameter has no declaration, or a declaration has no parameter.
            ConfigError: An override matches nothing, two overrides match one variable, or the layer
                decay is out of range or changes no learning rate.
        """
        parameters = [p for p in declared(model) if not p.spec.frozen]
        _check_layer_decay(layer_decay, parameters)
        deepest = 1 + len(model.layers) if isinstance(model, Module) else 0
        used: set[int] = set()
        entries = []
        for p in parameters:
            matching, about = _overriding(eta_overrides, p)
            if len(matching) > 1:
                raise ConfigError(f"eta_overrides {matching} all match {p.name}: expected at most one")
            value = (measured or {}).get(p.name, eta(p.spec))
            reduced = None
            used |= set(matching)
            for i in matching:
                value = eta_overrides[i].apply(value, about)
                reduced = eta_overrides[i].reduced(p.spec) if about is p.spec else None
            sigma = None if init is None else initial_std(init, p.spec)
            factors = Factors() if rates is None else rates(p)
            lr = factors.lr * layer_decay ** (deepest - p.depth)
            rule = (lr, factors.wd, factors.eps, reduced, matching[0] if matching else None)
            entries.append(Entry(p.name, p.module, p.local, p.spec, value, sigma, p.depth, *rule))
        _check_used(eta_overrides, used, parameters)
        self.frozen = tuple(p for p in declared(model) if p.spec.frozen)
        self._entries = tuple(entries)
        self._by_name = {e.name: e for e in entries}

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, key: int | str) -> Entry: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[Entry]: ...

    def __getitem__(self, key: int | str | slice) -> Entry | Sequence[Entry]:
        """Return an entry by position or by name."""
        return self._by_name[key] if isinstance(key, str) else self._entries[key]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)


def _check_layer_decay(layer_decay: float, parameters: Sequence[Declared]) -> None:
    """Refuse a layer decay that is out of range, or that changes no learning rate.

    Raises:
        ConfigError: The number is out of range, or all trained parameters have one depth.
    """
    if not isinstance(layer_decay, Real) or not 0 < layer_decay <= 1:
        raise ConfigError(f"layer_decay {layer_decay}: expected a number above 0 and at most 1")
    if layer_decay != 1 and len({p.depth for p in parameters}) == 1:
        depth = parameters[0].depth
        raise ConfigError(f"layer_decay {layer_decay} has no effect: all that is trained is at depth {depth}")


def _check_used(overrides: Sequence[EtaOverride], used: set[int], parameters: Sequence[Declared]) -> None:
    """Refuse overrides that apply to no trained parameter.

    Raises:
        ConfigError: The position of an override is not among the `used` ones.
    """
    for i, override in enumerate(overrides):
        if i not in used:
            known = sorted({f"{p.spec.role} {list(p.spec.axes)}" for p in parameters})
            raise ConfigError(
                f"eta_overrides[{i}] (role {override.role}, axes {list(override.axes)}) "
                f"matches no parameter; there are: {'; '.join(known)}"
            )


def _overriding(overrides: Sequence[EtaOverride], p: Declared) -> tuple[list[int], ParamSpec]:
    """The positions of the overrides that apply to a parameter, and the declaration that they are about.

    The norms of a matrix' rows (weight normalization) follow the overrides of the matrix, whose scale they
    carry, unless an override is about the norms themselves. The norm of a row of n entries is sqrt(n) times
    as large as the entries are.
    """
    own = [i for i, override in enumerate(overrides) if override.matches(p.spec)]
    for name, reparameterisation in p.module.reparameterised.items():
        if reparameterisation.row_norms == p.local and not own:
            matrix = p.module.specs[name]
            matching = [i for i, o in enumerate(overrides) if o.changes_eta and o.matches(matrix)]
            return matching, matrix.scaled_by(matrix.fan_in_size**-0.5)
    return own, p.spec


def eta(spec: ParamSpec) -> float:
    """Return Amos' scale of the trained tensor: that of the virtual tensor over the factor in front."""
    return _of_trained(virtual_eta(spec), spec)


def _of_trained(value: float, spec: ParamSpec) -> float:
    """Return the eta of a trained tensor for that of the virtual one; a sphere dictates both."""
    return value if spec.sphere_dim is not None else value / spec.scale


def initial_std(init: Init, spec: ParamSpec) -> float | None:
    """Return the initial standard deviation of the trained tensor, or None if it starts constant."""
    if spec.role not in RANDOM or spec.start is not None:
        return None
    if spec.sphere_dim is not None:
        return 1 / math.sqrt(spec.shape[spec.sphere_dim])
    return virtual_std(init, spec) / spec.scale
