"""Schedule-Free AdamW: an average of the iterates replaces the learning rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, decayed_groups
from zoo.optim.blocks import changed_blocks
from zoo.optim.optimizer import SteppingOptimizer, due, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import COUNT_OR_ZERO, NOT_NEGATIVE, TWO_DECAYS
from zoo.optim.sharding import reduced_like
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import slot_dtype
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import local

if TYPE_CHECKING:
    from zoo.init.registry import Entry

SLOTS = ("z", "exp_avg_sq")


class ScheduleFreeAdamW(SteppingOptimizer):
    r"""Schedule-Free AdamW (Defazio et al., arXiv 2405.15682).

    The parameters hold y, where gradients are taken; the model is evaluated at the average x. In step
    k = 1, 2, ... with lr_k = lr min(1, k / warmup)::

        v  <- beta2 v + (1 - beta2) g^2
        n   = g / (sqrt(v / (1 - beta2^k)) + eps) + weight_decay y
        w   = k^r max(lr_1, ..., lr_k)^power,   c = w / sum of all w
        y  <- (1 - c) y + c z + lr_k (beta1 (1 - c) - 1) n
        z  <- z - lr_k n
        x   = y + (1 - 1 / beta1) (z - y)
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": TWO_DECAYS,
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "warmup_steps": COUNT_OR_ZERO,
        "r": NOT_NEGATIVE,
        "weight_lr_power": NOT_NEGATIVE,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        *,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate; constant but for the warm-up.
            betas: the interpolation between z and x, and the decay of the second moment.
            eps: added to the root of the second moment.
            weight_decay: decay at y, times lr.
            warmup_steps: steps of linear warm-up.
            r: exponent of the step in the average's weights.
            weight_lr_power: exponent of the largest learning rate in the average's weights.

        Raises:
            ConfigError: A value is out of range, or the first of `betas` is 0.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "warmup_steps": warmup_steps,
            "r": r,
            "weight_lr_power": weight_lr_power,
            "k": 0,
            "weight_sum": 0.0,
            "lr_max": 0.0,
            "training": True,
        }
        super().__init__(params, defaults)

    def check(self, group: ParamGroup, place: str) -> None:
        """Check a group; without an interpolation, x would not follow from y and z."""
        super().check(group, place)
        if not group["betas"][0]:
            raise ConfigError(f"{place}: betas is {group['betas']}; expected a first one in (0, 1)")

    def update(self) -> None:
        """Move every parameter that has a gradient.

        Raises:
            RuntimeError: The parameters hold x, because `train` was not called after `eval`.
        """
        for group in self.param_groups:
            if not group["training"]:
                raise RuntimeError("the parameters are those of the evaluation; call optimizer.train() first")
            share, lr = self._advance(group)
            (beta1, beta2), k = group["betas"], group["k"]
            parameters = due(group)
            states = [self._state(parameter) for parameter in parameters]
            slots = ([local(state[slot]) for state in states] for slot in SLOTS)
            changed = local_rows(parameters), *slots
            for y, z, square, g in changed_blocks(skip_flag(self), changed, gradients(parameters)):
                g = g.type_as(z)
                square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                n = g.div(square.div(1 - beta2**k).sqrt_().add_(group["eps"]))
                if group["weight_decay"]:
                    n.add_(y, alpha=group["weight_decay"])
                exact = y.type_as(z)  # y itself, if it is as precise
                exact.lerp_(z, share).add_(n, alpha=lr * (beta1 * (1 - share) - 1))
                y.copy_(exact)
                z.add_(n, alpha=-lr)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        """The slots of a parameter; z starts at its present value."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update({slot: reduced_like(parameter, (), slot_dtype(parameter)) for slot in SLOTS})
            local(state["z"]).copy_(local(parameter))
        return state

    def _advance(self, group: ParamGroup) -> tuple[float, float]:
        """Count the step, and return the share of z in the new average and the learning rate."""
        group["k"] += 1
        k, warmup = group["k"], group["warmup_steps"]
        lr = float(group["lr"]) * (min(1.0, k / warmup) if warmup else 1.0)
        group["lr_max"] = max(group["lr_max"], lr)
        weight = k ** group["r"] * group["lr_max"] ** group["weight_lr_power"]
        group["weight_sum"] += weight
        return (weight / group["weight_sum"] if group["weight_sum"] else 0.0), lr

    @torch.no_grad()
    def eval(self) -> None:
        """Set the parameters to x, where the model is evaluated."""
        self._move(False, lambda beta1: 1 - 1 / beta1)

    @torch.no_grad()
    def train(self) -> None:
        """Set the parameters back to y, where gradients are taken."""
        self._move(True, lambda beta1: 1 - beta1)

    def _move(self, training: bool, share: Callable[[float], float]) -> None:
        for group in self.param_groups:
            if group["training"] == training:
                continue
            group["training"] = training
            by = share(group["betas"][0])
            for parameter in group["params"]:
                if "z" in self.state[parameter]:
                    local(parameter).lerp_(local(self.state[parameter]["z"]).to(parameter.dtype), by)


@OPTIMIZERS.register
class ScheduleFreeConfig(OptimizerConfig):
    """Schedule-Free AdamW: an average of the iterates instead of a schedule (arXiv 2405.15682)."""

    method_family: ClassVar[str] = "averages"
    method_source: ClassVar[str] = "arXiv 2405.15682"

    has_own_schedule: ClassVar[bool] = True

    type: Literal["schedule_free"] = "schedule_free"
    betas: tuple[Annotated[float, Field(gt=0, lt=1)], Decay] = Field(
        (0.9, 0.999), description="interpolation between iterate and average, decay of the second moment"
    )
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decay of matrices at y, times lr")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up; the schedule must be constant")
    r: float = Field(0.0, ge=0, description="exponent of the step in the average's weights")
    weight_lr_power: float = Field(2.0, ge=0, description="exponent of the largest rate in the weights")

    def not_under_fixed_norm(self) -> str:
        """The reason: an average of matrices of one norm has a smaller norm."""
        return "it evaluates an average of the weights, whose norm is not the one that is kept"

    def build(self, entries: Sequence[Entry]) -> ScheduleFreeAdamW:
        """The optimizer; its groups are the matrices and the vectors."""
        groups = decayed_groups(entries, self.lr, self.weight_decay)
        return ScheduleFreeAdamW(groups, **self.model_dump(exclude={"type", "weight_decay"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The iterate z and the second moment."""
        return dict.fromkeys(SLOTS, entry.spec.shape)
