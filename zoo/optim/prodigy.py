"""Prodigy: AdamW that estimates its learning rate from the distance to the initial point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, decayed_groups
from zoo.optim.blocks import blocks, changed_blocks
from zoo.optim.optimizer import SteppingOptimizer, due, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import DECAY_OR_NONE, NOT_NEGATIVE, POSITIVE, SWITCH, TWO_DECAYS, Numbers
from zoo.optim.sharding import complete, reduced_like, totals
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import slot_dtype
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import local

if TYPE_CHECKING:
    from zoo.init.registry import Entry

SLOTS = ("exp_avg", "exp_avg_sq", "s", "p0")
OF_ESTIMATE = ("betas", "beta3", "d0", "d_coef", "growth_rate", "bias_correction", "safeguard_warmup")
"""The options that the estimate depends on, which is one for all groups."""


class Prodigy(SteppingOptimizer):
    r"""Prodigy (Mishchenko and Defazio, arXiv 2306.06101, Algorithm 4).

    There is one number d for the whole model. With delta = d lr, times sqrt(1 - beta2^k) / (1 - beta1^k) in
    step k = 1, 2, ... if `bias_correction` is set::

        num  <- beta3 num + sum (d / d0) delta <g, p0 - p>
        s    <- beta3 s + (d / d0) delta g
        m    <- beta1 m + d (1 - beta1) g;   v <- beta2 v + d^2 (1 - beta2) g^2
        d    <- max(d, d_coef num / sum |s|), growing by `growth_rate` at most once it has left d0
        p    <- p - delta weight_decay p - delta m / (sqrt(v) + d eps), with the old d in delta

    As long as all gradients have been 0, a step changes nothing. A group with a learning rate of 0 takes no
    part: it is not in the sums, and neither its averages nor its parameters change. If no group has a higher
    rate, as in the first step of a warm-up that starts from 0, a step changes nothing.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": TWO_DECAYS,
        "beta3": DECAY_OR_NONE,
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "d0": POSITIVE,
        "d_coef": POSITIVE,
        "growth_rate": Numbers("a number >= 1", low=1, others=(math.inf,)),
        "bias_correction": SWITCH,
        "safeguard_warmup": SWITCH,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        beta3: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        d0: float = 1e-6,
        d_coef: float = 1.0,
        growth_rate: float | None = None,
        bias_correction: bool = False,
        safeguard_warmup: bool = False,
    ) -> None:
        """All arguments but `params` are defaults.

        Groups may differ in `weight_decay` and `eps`, and the `lr` of some may be 0.

        Args:
            params: parameters, or groups of them.
            lr: factor on the estimated learning rate; a schedule may change it.
            betas: decays of the two averages.
            beta3: decay of the estimate's sums; None: sqrt(beta2).
            eps: added, times d, to the root of the second moment.
            weight_decay: decoupled weight decay.
            d0: the first estimate.
            d_coef: factor on every estimate.
            growth_rate: largest factor by which the estimate grows in a step; None: any.
            bias_correction: correct the averages' bias as Adam does.
            safeguard_warmup: leave the learning rate out of `s`, which keeps a warm-up from inflating d.

        Raises:
            ConfigError: A value is out of range.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "beta3": beta3,
            "eps": eps,
            "weight_decay": weight_decay,
            "d0": d0,
            "d_coef": d_coef,
            "growth_rate": math.inf if growth_rate is None else growth_rate,
            "bias_correction": bias_correction,
            "safeguard_warmup": safeguard_warmup,
            "d": d0,
            "d_max": d0,
            "d_numerator": 0.0,
            "k": 0,
        }
        super().__init__(params, defaults)

    def update(self) -> None:
        """Estimate d, then move every parameter that has a gradient.

        Raises:
            ConfigError: The groups have different learning rates above 0, or different `OF_ESTIMATE`, but the
                estimate is one for all.
        """
        for key in OF_ESTIMATE:
            values = [group[key] for group in self.param_groups]
            if different := [value for value in values if value != values[0]]:
                raise ConfigError(f"Prodigy: {key}: groups have {values[0]} and {different[0]}; expected one")
        rates = {float(group["lr"]) for group in self.param_groups} - {0.0}
        if len(rates) > 1:
            raise ConfigError(f"Prodigy: groups have different learning rates {sorted(rates)}; expected one")
        for key, value in vars(self).pop("estimate", {}).items():  # from a checkpoint of zoo 0.2
            self._set_in_all_groups(key, value)
        group, lr = self.param_groups[0], max(rates, default=0.0)
        d, d0, (beta1, beta2) = group["d"], group["d0"], group["betas"]
        correction = 1.0
        if group["bias_correction"]:
            k = group["k"] + 1
            correction = math.sqrt(1 - beta2**k) / (1 - beta1**k)
        delta = d * lr * correction
        moving = [group for group in self.param_groups if float(group["lr"])]
        numerator, denominator, skip = self._sums(moving, d, delta)
        if denominator == 0 or skip:
            return
        numerator += group["d_numerator"] * _beta3(group)
        d_hat = group["d_coef"] * numerator / denominator
        if d == d0:
            d = max(d, d_hat)
        d_max = max(group["d_max"], d_hat)
        d = min(d_max, d * group["growth_rate"])
        estimate = {"d": d, "d_max": d_max, "d_numerator": numerator, "k": group["k"] + 1}
        for key, value in estimate.items():
            self._set_in_all_groups(key, value)
        for group in moving:
            parameters = due(group)
            moments = (self.held(parameters, slot) for slot in ("exp_avg", "exp_avg_sq"))
            for theta, m, v in blocks(local_rows(parameters), *moments):
                if group["weight_decay"]:
                    theta.add_(theta, alpha=-delta * group["weight_decay"])  # 1 - 1e-8 would be 1 in float32
                theta.addcdiv_(m, v.sqrt().add_(d * group["eps"]), value=-delta)

    def _sums(self, moving: Sequence[ParamGroup], d: float, delta: float) -> tuple[float, float, bool]:
        """Advance the averages of the groups that move.

        Returns:
            The new part of the numerator, the denominator, and whether the step is skipped, which are copied
            from their device at once.
        """
        for parameter in (parameter for group in self.param_groups for parameter in due(group)):
            self._begin(parameter)
        parameters = [parameter for group in moving for parameter in due(group)]
        group = self.param_groups[0]
        (beta1, beta2), beta3, d0 = group["betas"], _beta3(group), group["d0"]
        products, sizes = totals(parameters), totals(parameters)
        *changed, starts = (self.held(parameters, slot) for slot in SLOTS)
        columns = local_rows(parameters), gradients(parameters), starts, products, sizes
        skip = skip_flag(self)
        for m, v, s, theta, g, p0, product, size in changed_blocks(skip, changed, *columns):
            g = g.type_as(m)
            product.add_(g.dot(p0.sub(theta.type_as(p0))))
            m.mul_(beta1).add_(g, alpha=d * (1 - beta1))
            v.mul_(beta2).addcmul_(g, g, value=d * d * (1 - beta2))
            s.mul_(beta3).add_(g, alpha=(d / d0) * (d if group["safeguard_warmup"] else delta))
            size.add_(s.sum_of_sizes())
        complete([*products, *sizes], [*parameters, *parameters])
        numbers = [*products, *sizes, *([] if skip is None else [skip.float()])]
        told = torch.stack(numbers).tolist() if parameters else []
        middle, end = len(products), len(products) + len(sizes)
        return (d / d0) * delta * sum(told[:middle]), sum(told[middle:end]), any(told[end:])

    def _begin(self, parameter: Tensor) -> None:
        """Create the slots of a parameter; p0 is its present value."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update({slot: reduced_like(parameter, (), slot_dtype(parameter)) for slot in SLOTS})
            local(state["p0"]).copy_(local(parameter))

    def _set_in_all_groups(self, key: str, value: float) -> None:
        """Keep a number of the estimate; torch saves and copies the groups, but no attributes."""
        for group in self.param_groups:
            group[key] = value


def _beta3(group: ParamGroup) -> float:
    """The decay of the sums of the estimate."""
    beta3: float | None = group["beta3"]
    return math.sqrt(group["betas"][1]) if beta3 is None else beta3


@OPTIMIZERS.register
class ProdigyConfig(OptimizerConfig):
    """Prodigy: AdamW that estimates its learning rate (arXiv 2306.06101); lr is a factor on the estimate."""

    method_family: ClassVar[str] = "no learning rate"
    method_source: ClassVar[str] = "arXiv 2306.06101"

    type: Literal["prodigy"] = "prodigy"
    lr: float = Field(1.0, gt=0, allow_inf_nan=False, description="factor on the estimated learning rate")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decays of the running averages")
    beta3: Decay | None = Field(None, description="decay of the estimate's sums; null: sqrt(beta2)")
    eps: float = Field(1e-8, gt=0, description="added, times d, to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices")
    d0: float = Field(1e-6, gt=0, description="the first estimate")
    d_coef: float = Field(1.0, gt=0, description="factor on every estimate")
    growth_rate: float | None = Field(
        None, ge=1, description="largest factor by which the estimate grows in a step; null: any"
    )
    bias_correction: bool = Field(False, description="correct the averages' bias as Adam does")
    safeguard_warmup: bool = Field(False, description="keep a warm-up from inflating the estimate")

    @property
    def waits_for(self) -> str:
        """The sums from which the host computes the estimate."""
        return "the sums of the estimate"

    def not_under_fixed_norm(self) -> str:
        """The reason: Prodigy estimates the length of a step, which the constraint dictates."""
        return "it estimates the length of the steps, and the constraint dictates it"

    def build(self, entries: Sequence[Entry]) -> Prodigy:
        """The optimizer; its groups are the matrices and the vectors.

        Raises:
            ConfigError: The parameters have different learning rates (layer_decay).
        """
        if len({entry.lr_factor for entry in entries}) > 1:
            raise ConfigError("optimizer: prodigy estimates one learning rate; expected no layer_decay")
        groups = decayed_groups(entries, self.lr, self.weight_decay)
        return Prodigy(groups, **self.model_dump(exclude={"type", "weight_decay"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The two moments, the sum of the estimate, and the initial parameter."""
        return dict.fromkeys(SLOTS, entry.spec.shape)
