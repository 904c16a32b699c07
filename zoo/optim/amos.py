"""Amos: an optimizer whose weight decay brings each variable to a scale of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import torch
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT, StateDict

from zoo.config.registry import OPTIMIZERS
from zoo.init.registry import Reduction, ScalingSlots, eta
from zoo.kernels.foreach import Many
from zoo.kernels.support import uncompiled
from zoo.optim.amos_fused import fused_step
from zoo.optim.amos_groups import BY_TARGETS, OPTIONS, check_group, check_keys, shared_dims
from zoo.optim.amos_multi import multi_step
from zoo.optim.amos_step import Variable, eager_step
from zoo.optim.amos_update import Step
from zoo.optim.attach import attach
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.optimizer import ZooOptimizer, check_group_sizes, due
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import OneOf, Valid, check_ranges
from zoo.optim.sharding import reduced_like
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import batches, slot_dtype
from zoo.spec import Role, reduced_shape
from zoo.utils.errors import CheckpointError, ConfigError
from zoo.utils.untyped import Passed

if TYPE_CHECKING:
    from zoo.init.overrides import Overrides
    from zoo.init.registry import Entry
    from zoo.spec import ParamSpec

ScalingEta = Literal["target", "start"]

CHOICES: Mapping[str, Valid] = {
    "reduction": OneOf(get_args(Reduction)),
    "scaling_eta": OneOf(get_args(ScalingEta)),
    "scaling_slots": OneOf(get_args(ScalingSlots)),
}
"""The valid values of what determines the eta and the shared dimensions of groups."""

SLOTS_AT_A_TIME = 1 << 18
"""Number of entries of slots that are advanced together; temporary copies of them are made."""

OLD_SCALINGS = "; scalings of zoo 0.2 and before: scaling_eta='start', scaling_slots='shared'"

ETA_TOLERANCE = 1e-6
"""Relative difference up to which the eta of a checkpoint counts as equal to that of the model."""


class Amos(ZooOptimizer):
    r"""Amos (Tian and Parikh, arXiv 2210.11693, Algorithm 1).

    In step t = 1, 2, ... with learning rate xi, a variable theta of scale eta with gradient g changes as
    follows; M2(g)^2 is the mean of the squares of g over the dimensions that share a slot::

        g      <- clip(g, -clip_value, clip_value)                       with clip_value
        v      <- beta v + (1 - beta) M2(g)^2
        v_hat  <- v / (1 - beta^t)
        c      <- (1 + c_coef sqrt(xi) b)^(-1/2)
        d      <- (1 + d_coef sqrt(xi eta) b)^(-1)
        gamma  <- c xi^2 M2(g)^2 / v_hat
        delta  <- -d (xi eta g / sqrt(v_hat) + (gamma / 2 + extra_l2) theta)
        b      <- b + gamma (1 + b)
        m      <- momentum m + (1 - momentum) delta;  delta <- m         with momentum
        theta  <- theta + delta

    The factors c and d decay by themselves, so that the learning rate needs no schedule with a horizon, and
    training can continue from any checkpoint. A rule of thumb is xi = 1 / sqrt(number of independent batches
    in the training set).

    Every group has `eta`, the scale that its variables should converge to (section 2 of the paper), and
    `reduce`, the tensor dimensions that share a slot, () for none. The slots `v`, `b` and, with momentum,
    `m` are float64 for float64 parameters and float32 for all others. Parameters may be sharded (DTensor):
    means over a sharded dimension are means over all ranks. Parameters without a gradient or without
    entries are left alone. With momentum from step t on, `m` starts at 0 in step t.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        beta: float = 0.999,
        momentum: float | None = None,
        clip_value: float | Literal["by targets"] | None = None,
        extra_l2: float = 0.0,
        c_coef: float = 0.25,
        d_coef: float = 0.25,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool = False,
    ) -> None:
        """Build the optimizer. All arguments but `params` are defaults that a group may override.

        Args:
            params: groups, dicts with `params`, `eta` and `reduce`.
            lr: xi, the global learning rate; ``group["lr"]`` may change at every step.
            beta: decay of the running average of the mean square of the gradient.
            momentum: decay of the running average of the update, or None.
            clip_value: largest absolute value of a gradient entry, or None. "by targets" is 1 / sqrt(n),
                where n = ``group["targets"]`` is the number of targets in the mean loss. The caller of `step`
                sets it before every step, as zoo's training does.
            extra_l2: additional L2 decay (Amos-Extra).
            c_coef: p, how fast the weight decay slows down.
            d_coef: q, how fast the learning rate decays.
            maximize: whether to maximise the loss instead of minimising it.
            foreach: how many parameters one operation updates. True: many, joined in copies; False: one,
                which needs the least memory; None: many on a GPU, where every operation costs a launch, and
                one on a CPU, where its pieces stay in the cache. At most one of `foreach` and `fused` is
                True.
            fused: whether a C++ kernel takes the step, which reads memory once and is compiled at first use;
                CPU only. Slots have to be shared over trailing dimensions, like those of `nn.Linear`.

        Raises:
            ConfigError: A value is out of range, a group has a key that resembles one of Amos, a group
                lacks `eta` or `reduce`, a parameter lacks one of the dimensions, or `fused` is impossible.
        """
        defaults = {
            "lr": lr,
            "beta": beta,
            "momentum": momentum,
            "clip_value": clip_value,
            "extra_l2": extra_l2,
            "c_coef": c_coef,
            "d_coef": d_coef,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
        }
        super().__init__(params, defaults)

    @classmethod
    def for_module(
        cls,
        module: nn.Module,
        lr: float,
        *,
        reduction: Reduction = "one_axis",
        overrides: Overrides | None = None,
        **options: Passed,
    ) -> Amos:
        """Build Amos for any module, with eta and shared slots inferred from the types of its layers.

        Where the module contains vectors that nGPT keeps on spheres, they are projected after each step.

        Args:
            module: any `nn.Module`: a zoo model, PyTorch's layers, a model of another library; also
                compiled, parametrised or wrapped for data parallelism.
            lr: global learning rate xi.
            reduction: the dimensions that share a slot: `none`, `one_axis` or `dense` (A.8).
            overrides: other `eta` and `reduce` by pattern of names or class of modules, see `infer`:
                ``{"*.gate": {"eta": 0.1}, MyLayer: {"eta": 0.5, "reduce": (0,)}}``.
            **options: arguments of the constructor.

        Raises:
            ConfigError: It is no module or has no parameters, the reduction is unknown, or an override is
                malformed, matches nothing or matches a parameter that another one matches.
        """
        from zoo.init.infer import infer

        optimizer = cls.from_entries(infer(module, overrides), lr, reduction=reduction, **options)
        attach(optimizer, module)
        return optimizer

    @classmethod
    def from_entries(
        cls,
        entries: Iterable[Entry],
        lr: float,
        *,
        reduction: Reduction = "one_axis",
        scaling_eta: ScalingEta = "target",
        scaling_slots: ScalingSlots = "entry",
        **options: Passed,
    ) -> Amos:
        """Build Amos for the parameters of a registry.

        Args:
            entries: the registry.
            lr: global learning rate xi.
            reduction: which dimensions share a slot: `none`, `one_axis` or `dense` (A.8).
            scaling_eta: eta of nGPT's scalings: the value that their layer declares (`target`), or their
                start (`start`).
            scaling_slots: whether a scaling of nGPT has a slot for every entry (`entry`), or one for the
                whole vector (`shared`).
            **options: arguments of the constructor.

        Raises:
            ConfigError: A value is not one of the choices.
        """
        chosen = {"reduction": reduction, "scaling_eta": scaling_eta, "scaling_slots": scaling_slots}
        check_ranges(chosen, CHOICES, cls.__name__)

        def options_of(entry: Entry) -> ParamGroup:
            value = _eta(entry.spec, scaling_eta) if entry.eta == eta(entry.spec) else entry.eta
            return {"eta": value, "reduce": entry.reduce(reduction, scaling_slots)}

        return cls(grouped(entries, lr, options_of), lr, **options)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group, which needs `eta` and `reduce`.

        Raises:
            ConfigError: The group is not valid, see the constructor.
        """
        check_keys(param_group, self.next_place)
        super().add_param_group(param_group)
        if self.param_groups[-1]["clip_value"] == BY_TARGETS:
            self.param_groups[-1].setdefault("targets", None)

    def check(self, group: ParamGroup, place: str) -> None:
        """Check a group, see `check_group`."""
        check_group(group, place)

    @property
    def handles_skip(self) -> bool:
        """Return whether the optimizer undoes skipped steps itself; the C++ kernel for CPUs does not."""
        return not any(group["fused"] for group in self.param_groups)

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """Return the state of a parameter before its first step: zeros, placed as the parameter is."""
        dims = shared_dims(parameter, group["reduce"])
        state = {
            "step": torch.zeros((), dtype=torch.float32),
            "v": reduced_like(parameter, dims, slot_dtype(parameter)),
            "b": reduced_like(parameter, dims, slot_dtype(parameter)),
        }
        if group["momentum"]:
            state["m"] = reduced_like(parameter, (), slot_dtype(parameter))
        return state

    def update(self) -> None:
        """Take a step of Algorithm 1 with every parameter that has a gradient."""
        together: list[tuple[Step, Variable]] = []
        skip = skip_flag(self)
        for group in self.param_groups:
            take_step = fused_step if group["fused"] else partial(eager_step, skip=skip)
            at_a_time = 0 if group["foreach"] is False else SLOTS_AT_A_TIME
            for numbers, variables in self._advance_count(group):
                together += [(numbers, v) for v in variables if _takes_many(v, group)]
                others = [v for v in variables if not _takes_many(v, group)]
                for part in batches([v.slots["v"].numel() for v in others], at_a_time):
                    take_step(others[part], numbers)
        multi_step(together, skip)

    @uncompiled  # the counts are tensors, as checkpoints need them, and are read as numbers
    def _advance_count(self, group: ParamGroup) -> list[tuple[Step, list[Variable]]]:
        """Increment the step counts of the variables of a group that have a gradient.

        Returns:
            The numbers of the step, each with the variables that take it.
        """
        by_step: dict[Step, list[Variable]] = defaultdict(list)
        stepping: list[Variable] = []
        options = {k: group[k] for k in ("lr", "eta", "beta", "clip_value", "extra_l2", "c_coef", "d_coef")}
        options["lr"] = float(options["lr"])
        if group["clip_value"] == BY_TARGETS:
            options["clip_value"] = _clip_by(group.get("targets"))
        for parameter in due(group):
            if not parameter.numel():
                continue
            state = self.state[parameter]
            if not state:
                state.update(self.slots(parameter, group))
            elif not group["momentum"]:
                state.pop("m", None)
            elif "m" not in state:  # momentum starts in this step, as in a first step
                state["m"] = reduced_like(parameter, (), slot_dtype(parameter))
            dims = shared_dims(parameter, group["reduce"])
            stepping.append(Variable(parameter, state, dims, group["maximize"]))
        if not stepping:
            return []
        counts = [variable.slots["step"] for variable in stepping]
        Many(counts).add_(1)
        for variable, count in zip(stepping, torch.stack(counts).tolist(), strict=True):
            correction = 1 - group["beta"] ** count
            by_step[Step(correction=correction, momentum=group["momentum"] or None, **options)].append(
                variable
            )
        return list(by_step.items())

    def accepted(self, state_dict: StateDict) -> StateDict:
        """The `state_dict` with complete groups.

        eta and the shared dimensions are properties of the model: those of a checkpoint have to be the same.

        Raises:
            CheckpointError: The groups or the slots are not those of this optimizer, or a value is out of
                range. The optimizer is unchanged then.
        """
        return {**state_dict, "param_groups": self._checked_groups(state_dict)}

    def _checked_groups(self, state_dict: StateDict) -> list[ParamGroup]:
        """Return the groups of a `state_dict`, with the eta and the dimensions of the model."""
        saved, own = state_dict["param_groups"], self.param_groups
        check_group_sizes(saved, own)
        groups = []
        for i, (theirs, ours) in enumerate(zip(saved, own, strict=True)):
            place = f"parameter group {i} of the checkpoint"
            group = {**self.defaults, **theirs, "params": ours["params"]}
            try:
                check_keys(theirs, place)
                check_group(group, place)
            except ConfigError as error:
                raise CheckpointError(str(error)) from error
            if abs(theirs["eta"] / ours["eta"] - 1) > ETA_TOLERANCE:
                raise CheckpointError(
                    f"{place}: eta is {theirs['eta']}, but the model's is {ours['eta']}{OLD_SCALINGS}"
                )
            for index, parameter in zip(theirs["params"], ours["params"], strict=True):
                shape, former = (
                    reduced_shape(parameter.shape, shared_dims(parameter, group["reduce"]))
                    for group in (ours, theirs)
                )
                if former != shape:
                    raise CheckpointError(
                        f"{place}: reduce is {theirs['reduce']}, but the model's is {ours['reduce']}"
                        f"{OLD_SCALINGS}"
                    )
                _check_slots(state_dict["state"].get(index, {}), parameter, shape, f"{place}: slot")
            of_model = {"eta": ours["eta"], "reduce": ours["reduce"]}
            groups.append({**group, **of_model, "params": theirs["params"]})
        return groups

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a pickled or saved state; options that did not exist then have their defaults."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.update({k: v for k, v in self.defaults.items() if k in OPTIONS and k not in group})


def _takes_many(variable: Variable, group: ParamGroup) -> bool:
    """Whether `multi_step` updates a variable; not if a compiler merges the operations itself."""
    if not variable.has_rows or torch.compiler.is_compiling():
        return False
    if group["foreach"] is None:
        return not group["fused"] and variable.parameter.device.type != "cpu"
    return bool(group["foreach"])


def _clip_by(targets: float | None) -> float:
    """Return 1 / sqrt(targets), which is 1 for the gradient of the summed loss over sqrt(targets).

    The paper's released code clips this way. The paper has the option, but gives no value (Algorithm 1).

    Raises:
        ConfigError: The number of targets was not set.
    """
    if targets is None:
        raise ConfigError(
            f'clip_value is {BY_TARGETS!r}: set group["targets"] of every group to the number of targets '
            "before each step"
        )
    return 1 / math.sqrt(max(targets, 1))


def _eta(spec: ParamSpec, scaling_eta: ScalingEta) -> float:
    """The declared eta; for a scaling the one that `scaling_eta` selects."""
    if scaling_eta == "start" and spec.target is not None and spec.start is not None:
        return spec.start
    return eta(spec)


def _check_slots(slots: Mapping[str, object], parameter: Tensor, shape: tuple[int, ...], place: str) -> None:
    """Raise a `CheckpointError` if the names or shapes of slots do not fit a parameter."""
    expected = {"step": (), "v": shape, "b": shape, "m": tuple(parameter.shape)}
    if not slots:
        return
    for name in ("step", "v", "b", *(["m"] if "m" in slots else [])):
        slot = slots.get(name)
        saved = tuple(slot.shape) if isinstance(slot, Tensor) else None
        if saved != expected[name]:
            raise CheckpointError(f"{place} {name} has shape {saved}, expected {expected[name]}")


@OPTIMIZERS.register
class AmosConfig(OptimizerConfig):
    """Amos: weight decay by the scale that each variable should have; little memory; no horizon."""

    method_family: ClassVar[str] = "model-oriented scale"
    method_source: ClassVar[str] = "arXiv 2210.11693"
    older: ClassVar = {"scaling_eta": "start", "scaling_slots": "shared"}

    type: Literal["amos"] = "amos"
    beta: float = Field(0.999, ge=0, lt=1, description="decay of the running mean square of the gradient")
    momentum: float | None = Field(None, gt=0, lt=1, description="decay of the averaged update; null = off")
    clip_value: Annotated[float, Field(gt=0)] | Literal["by targets"] | None = Field(
        None,
        description="largest gradient entry; by targets: 1 / sqrt(number of targets), which is the released "
        "code's; null = off",
    )
    extra_l2: float = Field(0.0, ge=0, description="additional L2 decay (Amos-Extra)")
    c_coef: float = Field(0.25, ge=0, description="how fast the weight decay slows down")
    d_coef: float = Field(0.25, ge=0, description="how fast the learning rate decays")
    reduction: Literal["none", "one_axis", "dense"] = Field(
        "one_axis", description="the dimensions that share a slot (A.8)"
    )
    scaling_eta: ScalingEta = Field(
        "target", description="eta of nGPT's scalings: the value that their layer declares, or their start"
    )
    scaling_slots: Literal["shared", "entry"] = Field(
        "entry", description="nGPT's scalings: one slot for every entry, or one for a whole vector"
    )
    fused: bool = Field(
        False, description="one pass over memory, by a kernel compiled at first use; CPU only"
    )

    @field_validator("clip_value", mode="wrap")
    @classmethod
    def _number_or_by_targets(cls, value: object, check: ValidatorFunctionWrapHandler) -> object:
        """Give one message for both types."""
        try:
            return check(value)
        except ValidationError as error:
            raise ValueError(f"expected a number > 0, '{BY_TARGETS}' or null") from error

    @property
    def waits_for(self) -> str | None:
        """Return the quantity by which gradient entries are clipped, unless it is a constant."""
        return "the number of targets" if self.clip_value == BY_TARGETS else None

    @property
    def uses_eta(self) -> bool:
        """Return True, because every update depends on eta."""
        return True

    def largest_step(self, spec: ParamSpec) -> float | None:
        """Return xi eta, which both of Amos' decays make smaller; None where entries share a slot.

        An entry of a shared slot whose gradient is larger than that of the others moves further.
        """
        alone = self.reduction == "none" or (spec.role is Role.SCALING and self.scaling_slots == "entry")
        return self.lr * _eta(spec, self.scaling_eta) if alone else None

    def build(self, entries: Sequence[Entry]) -> Amos:
        """Build the optimizer; a group has the variables of equal eta and equal shared dimensions."""
        return Amos.from_entries(entries, **self.model_dump(exclude={"type"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Return the shapes of v and b and, with momentum, of m."""
        shared = entry.slot_shape(self.reduction, self.scaling_slots)
        return {"v": shared, "b": shared, **({"m": entry.spec.shape} if self.momentum else {})}
