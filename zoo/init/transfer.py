"""Rules that transfer initial standard deviations and learning rates from one size of a model to another.

A rule multiplies the settings that the initialisation and the optimizer have for each parameter by powers of
the ratios of sizes: m for a width, L for the depth, T for the steps, each divided by its value at the base
size. At the base size every factor is 1.

Some rules put a fixed factor c behind a matrix, such as 1/m behind the read-out. For optimizers whose update
does not depend on the scale of the gradient, the same is reached by multiplying the start and the learning
rate by c and dividing the decay and eps by c. zoo does the latter (our choice), so that no checkpoint depends
on a rule. Clipping by the global norm is not the same, because the gradient of such a matrix is 1/c times as
large as in the source, and so is its part of the norm.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.config.registry import TRANSFERS, Config, location, type_of
from zoo.init.schemes import Init
from zoo.spec import OUTPUT_AXES, Declared, ParamSpec, Role
from zoo.utils.errors import ConfigError, did_you_mean

LAYERS, STEPS = "layers", "steps"
"""The keys that `base` may have besides names of axes."""

UpdateSize = Literal["entry", "spectral"]
"""The quantity that a learning rate sets: the entries of an update (Adam), or its singular values (Muon)."""

Use = Literal["hidden", "read-out", "table", "vector"]
"""How a parameter grows with the width; see `Sizes.use`."""


@dataclass(frozen=True)
class Factors:
    """The factors by which a rule multiplies the settings of a parameter.

    Attributes:
        start: factor of the initial standard deviation.
        lr: factor of the learning rate.
        wd: factor of the decoupled weight decay, which the learning rate multiplies again.
        eps: factor of the optimizer's eps.
    """

    start: float = 1.0
    lr: float = 1.0
    wd: float = 1.0
    eps: float = 1.0

    def of_a_product(self, factor: float) -> Factors:
        """The factors of a tensor that is trained with a fixed factor in it instead of behind it."""
        return Factors(self.start * factor, self.lr * factor, self.wd / factor, self.eps / factor)


@dataclass(frozen=True)
class Sizes:
    """The ratios of the sizes of a model and its run to the base size.

    Attributes:
        axes: ratio of each axis that has a base size, by its name.
        depth: ratio of the number of layers.
        steps: ratio of the number of steps.
    """

    axes: Mapping[str, float]
    depth: float = 1.0
    steps: float = 1.0

    def inputs(self, spec: ParamSpec) -> float:
        """The ratio of the number of terms that an output of the parameter sums."""
        return math.prod(self.axes.get(axis, 1.0) for axis in spec.fan_in)

    def outputs(self, spec: ParamSpec) -> float:
        """The ratio of the number of outputs of a matrix, or of entries of a vector."""
        return math.prod(self.axes.get(axis, 1.0) for axis in spec.axes if axis not in spec.fan_in)

    def grown(self, power: float) -> float:
        """The ratio of a constant that is proportional to a power of the width."""
        return math.pow(self.axes.get("embed", 1.0), power)

    def use(self, spec: ParamSpec, in_block: bool) -> Use:
        """How a parameter grows.

        A matrix is hidden if axes of its inputs and of its outputs have a base size, and a read-out if only
        its inputs have one, which only the head of a model may. Embeddings are tables; other parameters with
        at most one growing axis count as vectors.

        Raises:
            ConfigError: An axis of a hidden matrix has no base size. Those of a matrix outside of the layers
                may all have none, because it need not grow.
        """
        if spec.role is Role.EMBEDDING:
            return "table"
        inside = [axis for axis in spec.fan_in if axis in self.axes]
        outside = [axis for axis in spec.axes if axis not in spec.fan_in and axis in self.axes]
        if spec.role not in (Role.LINEAR, Role.CONV) or not (inside or outside or in_block):
            return "vector"
        is_head = not OUTPUT_AXES.isdisjoint(spec.axes)
        if not (inside and outside) and (in_block or (inside and not is_head)):
            missing = [axis for axis in spec.axes if axis not in self.axes]
            has, size = ("has", "size") if len(missing) == 1 else ("have", "sizes")
            raise ConfigError(
                f"transfer.base: a matrix {' x '.join(spec.axes)} grows, but {' and '.join(missing)} "
                f"{has} no base {size}; expected the size of every axis of the base model"
            )
        return "hidden" if inside and outside else "read-out" if inside else "vector"


class Transfer(Config):
    """A rule, and the sizes at which the settings were chosen."""

    base: dict[str, Annotated[int, Field(gt=0, le=2**50)]] = Field(
        {}, description="size at which the settings were chosen: of axes (embed, heads, mlp), layers, steps"
    )
    wd_transfer: Literal["rule", "independent", "constant", "sqrt", "inverse_width"] = Field(
        "rule",
        description="decay of matrices: the rule's; lr wd constant; wd constant; wd sqrt(m); lr wd over m",
    )
    horizon: float | None = Field(
        None, ge=-2, le=2, description="exponent e: every rate times (steps / base steps)^e; null: the rule's"
    )

    update_size: ClassVar[UpdateSize] = "entry"
    """The kind of optimizer that the rule was derived for."""
    on_sphere: ClassVar[bool] = False
    """Whether the rule is for matrices on nGPT's sphere; otherwise it is for free ones."""
    needs: ClassVar[tuple[str, ...]] = ("embed",)
    """The keys that `base` must have."""
    branches: ClassVar[bool] = False
    """Whether the rule changes the ends of residual branches."""
    own_horizon: ClassVar[float] = 0.0
    """The exponent of the horizon that belongs to the rule."""
    of_sizes: ClassVar[bool] = True
    """Whether the rule is about the sizes of the model, and thus about some models and optimizers only."""

    @abstractmethod
    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """The rule's factors for a parameter, without those of `wd_transfer` and `horizon`.

        Args:
            spec: the declaration of the virtual tensor.
            in_block: whether the parameter is in one of the stacked layers.
            sizes: the ratios to the base size.

        Returns:
            The factors, and the fixed factor behind the parameter.
        """
        raise NotImplementedError

    def at(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> Factors:
        """All factors of a parameter; the arguments are those of `factors`.

        Raises:
            ConfigError: `factors` returns something else, or a factor that is no finite number above 0.
        """
        found = self.factors(spec, in_block, sizes)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Factors)):
            raise ConfigError(
                f"{location(type(self))}: factors returned {found!r}; expected a pair of "
                "zoo.init.transfer.Factors and the fixed factor behind the parameter, a number"
            )
        factors, behind = found
        for name, value in [*vars(factors).items(), ("the factor behind it", behind)]:
            if not (isinstance(value, Real) and 0 < float(value) < math.inf):
                raise ConfigError(
                    f"{location(type(self))}: factors returned {name} {value!r} for {' x '.join(spec.axes)}; "
                    "expected a finite number above 0"
                )
        m, lr = sizes.inputs(spec), factors.lr * sizes.steps**self.exponent
        # Look-up tables and the read-out keep the rule's decay: sqrt(m) belongs to rates of 1/m (2510.15262).
        hidden = self.wd_transfer == "sqrt" and sizes.use(spec, in_block) == "hidden"
        decays = {
            "rule": factors.wd,
            "independent": 1 / lr,
            "constant": 1.0,
            "sqrt": math.sqrt(m) if hidden else factors.wd,
            "inverse_width": 1 / (m * lr),
        }
        return replace(factors, wd=decays[self.wd_transfer], lr=lr).of_a_product(behind)

    def at_base(self, spec: ParamSpec) -> ParamSpec:
        """The declaration at the base size: its shape, and the parts that it consists of."""
        sizes = {axis: self.base.get(axis, n) for axis, n in zip(spec.axes, spec.shape, strict=True)}
        parts = tuple((axis, round(count * sizes[axis] / spec.size(axis))) for axis, count in spec.parts)
        return replace(spec, shape=tuple(sizes.values()), parts=parts)

    @property
    def exponent(self) -> float:
        """The exponent of the horizon."""
        return self.own_horizon if self.horizon is None else self.horizon

    def sizes(self, parameters: Sequence[Declared], n_layers: int, steps: int | None) -> Sizes:
        """The ratios of a model's sizes to the base size.

        Args:
            parameters: the parameters of the model.
            n_layers: number of layers of the model, see `Model.depth`.
            steps: number of steps of the run; None: it is not known.

        Raises:
            ConfigError: `base` lacks what the rule needs, names what the model does not have, or has a width
                of heads that is no multiple of the size of a head.
        """
        axis_sizes = {
            axis: size for p in parameters for axis, size in zip(p.spec.axes, p.spec.shape, strict=True)
        }
        self._check_base(parameters, axis_sizes)
        axes = {name: axis_sizes[name] / size for name, size in self.base.items() if name in axis_sizes}
        depth = n_layers / self.base[LAYERS] if LAYERS in self.base else 1.0
        return Sizes(axes, depth, self.length(steps))

    def _check_base(self, parameters: Sequence[Declared], axis_sizes: Mapping[str, int]) -> None:
        """Check that the base size fits the rule and the model, see `sizes`."""
        known = [*axis_sizes, LAYERS, STEPS]
        for name in self.needs:
            if name not in known:
                raise ConfigError(
                    f"transfer: {type_of(self)} follows the axis {name}, which no parameter of the model "
                    f"has (its axes: {', '.join(axis_sizes)}); expected another model, or transfer: none"
                )
        for name in self.base:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigError(f"transfer.base.{name}: the model has no axis of this name{hint}")
        for name in self.needs:
            if name not in self.base:
                raise ConfigError(f"transfer.base: no {name}; expected its size at the base")
        if "head_size" in self.base:
            raise ConfigError(
                "transfer.base.head_size: no rule here speaks of larger heads (scores are divided by "
                "sqrt(head_size)); expected more heads of one size"
            )
        for p in parameters:
            for axis, count in p.spec.parts:  # the axes of heads
                head_size = p.spec.size(axis) // count
                if self.base.get(axis, 0) % head_size:
                    raise ConfigError(
                        f"transfer.base.{axis}: value {self.base[axis]}; expected a multiple of {head_size}, "
                        f"the size of a head: {axis} is the width of all heads together, not their number"
                    )
        if LAYERS in self.base and LAYERS not in self.needs:
            raise ConfigError(f"transfer.base.{LAYERS} has no effect: the rule says nothing of depth")
        if (STEPS in self.base) != bool(self.exponent) and (STEPS in self.base or self.horizon is not None):
            raise ConfigError(f"transfer.horizon and transfer.base.{STEPS} have no effect without each other")

    def length(self, steps: int | None) -> float:
        """The ratio of a number of steps to that of the base; 1 if either is not known."""
        return steps / self.base[STEPS] if steps is not None and STEPS in self.base else 1.0

    def of_length(self, steps: int | None) -> float:
        """The factor of all learning rates in a run of a number of steps; 1 if that is not known."""
        return math.pow(self.length(steps), self.exponent)


class Transferred(Init):
    """A scheme whose standard deviations are those of the base size times the factor of a rule."""

    init: Init
    transfer: Transfer
    ratios: Sizes

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the standard deviation of the matrix at the base size, times the factor of the rule."""
        start = self.transfer.at(spec, False, self.ratios).start
        return self.init.matrix_std(self._base(spec)) * start

    def position_std(self, spec: ParamSpec) -> float:
        """Return the standard deviation at the base size."""
        return self.init.position_std(self._base(spec))

    def lookup_scale(self, spec: ParamSpec) -> float:
        """Return the factor at the base size, over those that a tied table and the model have grown by."""
        scale = self.init.lookup_scale(self._base(spec))
        if spec.tied:
            scale /= self.logits_scale(spec) * self.ratios.grown(spec.powers.lookups)
        return scale

    def logits_scale(self, spec: ParamSpec) -> float:
        """Return the rule's factor behind the read-out, if that is a tied table; otherwise 1."""
        return self.transfer.at(spec, False, self.ratios).start if spec.tied else 1.0

    def _base(self, spec: ParamSpec) -> ParamSpec:
        """The declaration at the base size."""
        branches = spec.residual_branches
        if self.transfer.branches and branches > 1:
            branches = round(branches / self.ratios.depth)
        return replace(
            self.transfer.at_base(spec),
            residual_branches=branches,
            input_std=spec.input_std / self.ratios.grown(spec.powers.input_std),
            output_std=spec.output_std / self.ratios.grown(spec.powers.output_std),
            lookup_std=spec.lookup_std and spec.lookup_std / self.ratios.grown(spec.powers.lookup_std),
        )


def _mup(spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
    """Adam's factors under muP; the read-out has 1/m behind it.

    A tied table is trained as an embedding, with 1/m in front of its logits (the authors' MuSharedReadout).
    What a model's own constant behind a table has grown by is divided out, and so is what the start of a
    scaling has shrunk by, because the layer divides the trained value by it.
    """
    m = sizes.inputs(spec)
    match sizes.use(spec, in_block):
        case "hidden":
            return Factors(start=m**-0.5, lr=1 / m, wd=m), 1.0
        case "read-out":
            return Factors(), 1 / m
        case "table" if spec.tied:
            # For the logits; the vectors that are looked up are divided by it, see `Transferred`.
            return Factors(), 1 / (m * sizes.grown(spec.powers.logits))
        case _:
            return Factors(), sizes.grown(spec.powers.start) / sizes.grown(spec.powers.lookups)


@TRANSFERS.register
class NoTransfer(Transfer):
    """The same settings at every size."""

    type: Literal["none"] = "none"

    of_sizes: ClassVar[bool] = False

    @model_validator(mode="after")
    def _has_no_settings(self) -> Self:
        for name in sorted(self.model_fields_set - {"type"}):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"`{name}` has no effect without a rule")
        return self

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """Return factors of 1."""
        return Factors(), 1.0


@TRANSFERS.register
class Horizon(Transfer):
    """The same settings at every size; all rates follow the number of steps (our rule, for every optimizer).

    With the exponent -1/2 it is the rule of thumb of Amos' paper for text that is read once: a learning rate
    of the order of 1/sqrt(N) for N independent batches (arXiv 2210.11693, section 2, justified in section 4).
    """

    type: Literal["horizon"] = "horizon"
    horizon: float = Field(ge=-2, le=2, description="exponent e: every rate times (steps / base steps)^e")
    wd_transfer: Literal["rule", "independent"] = Field(
        "rule", description="decay of matrices: the same at all numbers of steps; lr wd constant"
    )

    needs: ClassVar[tuple[str, ...]] = (STEPS,)
    of_sizes: ClassVar[bool] = False

    @model_validator(mode="after")
    def _has_no_sizes(self) -> Self:
        if others := sorted(self.base.keys() - {STEPS}):
            raise ValueError(f"`base.{others[0]}` has no effect: the rule is about steps alone")
        return self

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """Return factors of 1, as no size of the model matters."""
        return Factors(), 1.0


@TRANSFERS.register
class MuP(Transfer):
    """muP for Adam: rates of hidden matrices over m, 1/m behind the read-out (arXiv 2203.03466)."""

    type: Literal["mup"] = "mup"

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """Return the factors of the authors' MuAdamW, which keeps lr times wd; muP has no rule for depth."""
        return _mup(spec, in_block, sizes)


@TRANSFERS.register
class CompleteP(Transfer):
    """muP, and L^(-alpha) behind every residual branch (arXiv 2505.01618, Table 1)."""

    type: Literal["completep"] = "completep"
    alpha: float = Field(1.0, ge=0.5, le=1, description="exponent of the depth; 1 is recommended")

    needs: ClassVar[tuple[str, ...]] = ("embed", LAYERS)
    branches: ClassVar[bool] = True

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """The factors of Table 1, with the eps of the paper's version 4: outside the blocks it is eps / m."""
        factors, behind = _mup(spec, in_block, sizes)
        eps, depth = 1 / sizes.axes["embed"], sizes.depth
        if in_block:
            factors = replace(factors, lr=factors.lr * depth ** (self.alpha - 1))
            eps *= depth**-self.alpha
        if spec.residual_branches > 1:
            behind *= depth**-self.alpha
        return replace(factors, eps=eps), behind


@TRANSFERS.register
class Spectral(Transfer):
    """Muon's rates times sqrt(outputs / inputs), muP for what AdamW trains (arXiv 2512.05620, Table 1)."""

    type: Literal["spectral"] = "spectral"
    update_size: ClassVar[UpdateSize] = "spectral"

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """Apply the spectral condition to hidden matrices, whose lr times wd is proportional to 1 / width.

        The rate is that of an orthogonal update without any factor of its shape.
        """
        if sizes.use(spec, in_block) != "hidden":
            return _mup(spec, in_block, sizes)
        m, rate = sizes.inputs(spec), math.sqrt(sizes.outputs(spec) / sizes.inputs(spec))
        return Factors(start=m**-0.5, lr=rate, wd=1 / (m * rate)), 1.0


@TRANSFERS.register
class NuGPT(Transfer):
    """nuGPT, nGPT whose rates transfer: matrices m^(-3/4), starts of scalings (arXiv 2604.27077, 3.1)."""

    type: Literal["nugpt"] = "nugpt"
    alignment: Literal["measured", "full", "none"] | Annotated[float, Field(ge=0.5, le=1)] = Field(
        "measured",
        description="exponent a of the rates of matrices, m^-a: 3/4 is what the authors measured, full is 1, "
        "none is 1/2, and a number is one's own measurement (our addition)",
    )

    needs: ClassVar[tuple[str, ...]] = ("embed", LAYERS)
    on_sphere: ClassVar[bool] = True
    own_horizon: ClassVar[float] = -1 / 3

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """Return rates: m^(-1/2) for tables, by alignment for matrices, 1 for scalings; nothing decays."""
        m = sizes.axes["embed"]
        named = {"measured": 0.75, "full": 1.0, "none": 0.5}
        exponent = named[self.alignment] if isinstance(self.alignment, str) else self.alignment
        if spec.role is Role.EMBEDDING:
            return Factors(lr=m**-0.5), 1.0
        return Factors(lr=m**-exponent if spec.role is Role.LINEAR else 1.0), 1.0
