"""Amos: an optimizer with a decay of its own for every variable, and next to no memory."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.kernels.amos import StaleLockError
from zoo.optim.amos_fused import check_fused, fused_step
from zoo.optim.amos_step import Variable, eager_step
from zoo.optim.amos_update import Step
from zoo.optim.attach import attach
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.optimizer import ZooOptimizer
from zoo.optim.sharding import reduced_like
from zoo.optim.slots import batches, slot_dtype
from zoo.utils.errors import CheckpointError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from zoo.init.infer import Overrides
    from zoo.init.registry import Entry, Reduction

log = logging.getLogger("zoo")

OPTIONS = ("lr", "beta", "momentum", "clip_value", "extra_l2", "c_coef", "d_coef", "eta", "reduce", "fused")
FOREIGN = ("params", "param_names", "initial_lr")
OPTIONAL = ("momentum", "clip_value")
RANGES = {
    "lr": (0, math.inf, "a finite number >= 0"),
    "eta": (0, math.inf, "a finite number > 0"),
    "beta": (0, 1, "a number in [0, 1)"),
    "momentum": (0, 1, "a number in [0, 1), or None"),
    "clip_value": (0, math.inf, "a finite number > 0, or None"),
    "extra_l2": (0, math.inf, "a finite number >= 0"),
    "c_coef": (0, math.inf, "a finite number >= 0"),
    "d_coef": (0, math.inf, "a finite number >= 0"),
}
SLOTS_AT_A_TIME = 1 << 18
"""Slots that are advanced in one go, which makes temporary copies of them."""


class Amos(ZooOptimizer):
    r"""Amos (Tian and Parikh, arXiv 2210.11693, Algorithm 1).

    For each variable with scale eta, gradient g and M2(g)^2 the mean of its squares over the
    dimensions that share a slot, in step t = 1, 2, ... with learning rate xi::

        g      <- clip(g, -clip_value, clip_value)                       if asked for
        v      <- beta v + (1 - beta) M2(g)^2
        v_hat  <- v / (1 - beta^t)
        c      <- (1 + c_coef sqrt(xi) b)^(-1/2)
        d      <- (1 + d_coef sqrt(xi eta) b)^(-1)
        gamma  <- c xi^2 M2(g)^2 / v_hat
        delta  <- -d (xi eta g / sqrt(v_hat) + (gamma / 2 + extra_l2) theta)
        b      <- b + gamma (1 + b)
        m      <- momentum m + (1 - momentum) delta;  delta <- m         with momentum
        theta  <- theta + delta

    The learning rate decays by itself and needs no horizon: training goes on from any checkpoint.
    Rule of thumb: xi = 1 / sqrt(number of independent batches in the training set).

    Every group carries `eta`, the scale its variables should converge to, and `reduce`, the tensor
    dimensions that share a slot, () for none. The slots `v`, `b` (and `m`, with momentum) are
    float32 whatever the parameters are, float64 for float64. Parameters may be sharded (DTensor):
    means over a sharded dimension are means over all ranks.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        beta: float = 0.999,
        momentum: float | None = None,
        clip_value: float | None = None,
        extra_l2: float = 0.0,
        c_coef: float = 0.25,
        d_coef: float = 0.25,
        *,
        fused: bool = False,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: groups, dicts with `params`, `eta` and `reduce`.
            lr: xi, the global learning rate; ``group["lr"]`` may change at every step.
            beta: decay of the running average of the mean square of the gradient.
            momentum: decay of the running average of the update, or None.
            clip_value: largest absolute value of a gradient entry, or None.
            extra_l2: additional L2 decay (Amos-Extra).
            c_coef: p, how fast the weight decay slows down.
            d_coef: q, how fast the learning rate decays.
            fused: one pass over memory by a kernel that is compiled at first use; CPU only. The
                slots have to be shared over trailing dimensions, as in torch's layouts they are.

        Raises:
            ConfigError: a value out of range, an unknown key in a group, a group without `eta` or
                `reduce`, dimensions that a parameter does not have, or `fused` where it is impossible.
        """
        defaults = {
            "lr": lr,
            "beta": beta,
            "momentum": momentum,
            "clip_value": clip_value,
            "extra_l2": extra_l2,
            "c_coef": c_coef,
            "d_coef": d_coef,
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
        **options: Any,
    ) -> Amos:
        """Build Amos for any module, with eta and shared slots inferred from the types of its layers.

        Where the module contains vectors that nGPT keeps on spheres, they are projected after each step.

        Args:
            module: any `nn.Module`: a zoo model, PyTorch's layers, a model of another library; also
                compiled, parametrised or wrapped for data parallelism.
            lr: xi.
            reduction: the dimensions that share a slot: `none`, `one_axis` or `dense` (A.8).
            overrides: other `eta` and `reduce` by pattern of names or class of modules, see `infer`:
                ``{"*.gate": {"eta": 0.1}, MyLayer: {"eta": 0.5, "reduce": (0,)}}``.
            **options: the constructor's.

        Raises:
            ConfigError: A module without parameters, or overrides that are malformed, match nothing or
                match one parameter twice.
        """
        from zoo.init.infer import infer

        optimizer = cls.from_entries(infer(module, overrides), lr, reduction=reduction, **options)
        attach(optimizer, module)
        return optimizer

    @classmethod
    def from_entries(
        cls, entries: Iterable[Entry], lr: float, *, reduction: Reduction = "one_axis", **options: Any
    ) -> Amos:
        """Amos for the parameters of a registry.

        Args:
            entries: the registry.
            lr: xi.
            reduction: which dimensions share a slot: `none`, `one_axis` or `dense` (A.8).
            **options: the constructor's.
        """
        groups = grouped(entries, lr, lambda entry: {"eta": entry.eta, "reduce": entry.reduce(reduction)})
        return cls(groups, lr, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which needs `eta` and `reduce`.

        Raises:
            ConfigError: see the constructor.
        """
        name = f"parameter group {len(self.param_groups)}"
        self._check_keys(param_group, name)
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1], name)
        except ConfigError:
            self.param_groups.pop()
            raise

    @staticmethod
    def _check_keys(group: dict[str, Any], name: str) -> None:
        for key in group:
            if key not in OPTIONS and key not in FOREIGN:
                raise ConfigError(f"{name}: unknown key '{key}'{did_you_mean(key, OPTIONS)}")
        for key in ("eta", "reduce"):
            if key not in group:
                raise ConfigError(f"{name}: no '{key}'; Amos.for_module infers it from the layers")

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step: zeros, placed as the parameter is."""
        dtype, dims = slot_dtype(parameter), _dims(parameter, group["reduce"])
        state = {
            "step": torch.zeros((), dtype=torch.float32),
            "v": reduced_like(parameter, dims, dtype),
            "b": reduced_like(parameter, dims, dtype),
        }
        if group["momentum"]:
            state["m"] = reduced_like(parameter, (), dtype)
        return state

    def update(self) -> None:
        """Algorithm 1 for every parameter that has a gradient."""
        for group in self.param_groups:
            for numbers, variables in self._due(group).items():
                for part in batches([v.slots["v"].numel() for v in variables], SLOTS_AT_A_TIME):
                    (fused_step if group["fused"] else eager_step)(variables[part], numbers)

    def _due(self, group: dict[str, Any]) -> dict[Step, list[Variable]]:
        """The variables of a group that have a gradient, by the numbers of their step."""
        due: dict[Step, list[Variable]] = defaultdict(list)
        options = {k: group[k] for k in ("lr", "eta", "beta", "clip_value", "extra_l2", "c_coef", "d_coef")}
        options["lr"] = float(options["lr"])
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                raise RuntimeError(
                    "Amos needs dense gradients, and one is sparse: build the embedding with sparse=False"
                )
            state = self.state[parameter]
            if not state:
                state.update(self.slots(parameter, group))
            state["step"] += 1
            correction = 1 - group["beta"] ** state["step"].item()
            numbers = Step(correction=correction, momentum=group["momentum"] or None, **options)
            due[numbers].append(Variable(parameter, state, _dims(parameter, group["reduce"])))
        return due

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`; the slots keep their precision, whatever the parameters have.

        Raises:
            CheckpointError: the groups are not those of an Amos.
        """
        for i, group in enumerate(state_dict["param_groups"]):
            try:
                self._check_keys(group, f"parameter group {i} of the checkpoint")
            except ConfigError as error:
                raise CheckpointError(str(error)) from error
        super().load_state_dict(state_dict)
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        mine = [p for group in self.param_groups for p in group["params"]]
        for index, parameter in zip(saved, mine, strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if name != "step":  # torch has cast the slots to the dtype of the parameter
                    self.state[parameter][name] = value.to(
                        dtype=slot_dtype(parameter), device=parameter.device
                    )


def _dims(parameter: Tensor, reduce: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions that share a slot, counted from the front."""
    return tuple(sorted(d % parameter.dim() for d in reduce))


def _check_group(group: dict[str, Any], name: str) -> None:
    """Raise a `ConfigError` for a value of the group that makes no sense."""
    for key, (low, high, expected) in RANGES.items():
        value = group[key]
        if value is None and key in OPTIONAL:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float, Tensor))
            or not low <= float(value) < high
        ):
            raise ConfigError(f"{name}: {key} is {value!r}, expected {expected}")
    if group["eta"] == 0 or group["clip_value"] == 0:
        key = "eta" if group["eta"] == 0 else "clip_value"
        raise ConfigError(f"{name}: {key} is {group[key]!r}, expected {RANGES[key][2]}")
    reduce = group["reduce"]
    if not isinstance(reduce, tuple) or not all(type(d) is int for d in reduce):
        raise ConfigError(f"{name}: reduce is {reduce!r}, expected a tuple of tensor dimensions, () for none")
    for i, parameter in enumerate(group["params"]):
        which = group["param_names"][i] if "param_names" in group else f"parameter {i}"
        if not parameter.is_floating_point():
            raise ConfigError(f"{name}: {which} is {parameter.dtype}, expected a floating point dtype")
        n = parameter.dim()
        if not all(-n <= d < n for d in reduce) or len({d % n for d in reduce}) < len(reduce):
            raise ConfigError(f"{name}: reduce is {reduce}, but {which} has shape {tuple(parameter.shape)}")
        if group["fused"]:
            try:
                check_fused(parameter, _dims(parameter, reduce), f"{name}: {which}")
            except StaleLockError as error:
                log.warning("Amos(fused=True) goes on without its kernel: %s", error)
                group["fused"] = False


@OPTIMIZERS.register
class AmosConfig(OptimizerConfig):
    """Amos: a decay per variable from the scale it should have; next to no memory; no horizon."""

    type: Literal["amos"] = "amos"
    beta: float = Field(0.999, ge=0, lt=1, description="decay of the running mean square of the gradient")
    momentum: float | None = Field(None, gt=0, lt=1, description="decay of the averaged update; null = off")
    clip_value: float | None = Field(None, gt=0, description="largest gradient entry; null = off")
    extra_l2: float = Field(0.0, ge=0, description="additional L2 decay (Amos-Extra)")
    c_coef: float = Field(0.25, ge=0, description="how fast the weight decay slows down")
    d_coef: float = Field(0.25, ge=0, description="how fast the learning rate decays")
    reduction: Literal["none", "one_axis", "dense"] = Field(
        "one_axis", description="the dimensions that share a slot (A.8)"
    )
    fused: bool = Field(
        False, description="one pass over memory, by a kernel compiled at first use; CPU only"
    )

    @property
    def uses_eta(self) -> bool:
        """That is what it is about."""
        return True

    def build(self, entries: Sequence[Entry]) -> Amos:
        """The optimizer; its groups are the variables of equal eta and equal shared dimensions."""
        return Amos.from_entries(entries, **self.model_dump(exclude={"type"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """v and b, shared, and with momentum m."""
        shared = entry.slot_shape(self.reduction)
        return {"v": shared, "b": shared, **({"m": entry.spec.shape} if self.momentum else {})}
