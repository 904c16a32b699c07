"""AdEMAMix: Adam with a second, much slower average of the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, decayed_groups
from zoo.optim.blocks import changed_blocks
from zoo.optim.moments import adam_step, advance_moments
from zoo.optim.optimizer import CountingOptimizer, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import COUNT_OR_ZERO, NOT_NEGATIVE, TWO_DECAYS
from zoo.optim.skip_flag import skip_flag

if TYPE_CHECKING:
    from zoo.init.registry import Entry

WARMUP = replace(COUNT_OR_ZERO, expected=f"{COUNT_OR_ZERO.expected}, or None", others=(None,))
SLOTS = ("exp_avg_fast", "exp_avg_slow", "exp_avg_sq")


class AdEMAMix(CountingOptimizer):
    r"""AdEMAMix (Pagliardini, Ablin and Grangier, arXiv 2409.03137).

    In step t = 1, 2, ...::

        m1     <- beta1 m1 + (1 - beta1) g
        m2     <- beta3(t) m2 + (1 - beta3(t)) g
        v      <- beta2 v + (1 - beta2) g^2
        theta  <- theta - lr ((m1 / (1 - beta1^t) + alpha(t) m2) / (sqrt(v / (1 - beta2^t)) + eps)
                              + weight_decay theta)

    alpha(t) rises linearly to alpha over `alpha_warmup` steps; the half-life of beta3(t) rises linearly from
    that of beta1 over `beta3_warmup` steps. The slow average has no bias correction.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": replace(TWO_DECAYS, expected="three numbers in [0, 1)", count=3),
        "alpha": NOT_NEGATIVE,
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "alpha_warmup": WARMUP,
        "beta3_warmup": WARMUP,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 2.0,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        alpha_warmup: int | None = None,
        beta3_warmup: int | None = None,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate.
            betas: decays of the fast average, of the second moment and of the slow average.
            alpha: weight of the slow average.
            eps: added to the root of the second moment.
            weight_decay: decoupled weight decay, times lr.
            alpha_warmup: steps over which `alpha` rises, for the authors all steps of the run; None: 0.
            beta3_warmup: steps over which the decay of the slow average rises; None: 0.

        Raises:
            ConfigError: A value is out of range.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "alpha_warmup": alpha_warmup,
            "beta3_warmup": beta3_warmup,
        }
        super().__init__(params, defaults)

    def averages(self, parameter: Tensor) -> Sequence[str]:
        """The fast, the slow and the squared average."""
        return SLOTS

    def move(self, parameters: Sequence[Tensor], t: int, group: ParamGroup) -> None:
        """Take a step, see the class."""
        (beta1, beta2, beta3), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        slow_share = 1 - slow_decay(t, beta1, beta3, group["beta3_warmup"])
        warmup = group["alpha_warmup"]
        alpha = group["alpha"] * (min(t / warmup, 1.0) if warmup else 1.0)
        slots = (self.held(parameters, slot) for slot in SLOTS)
        changed = local_rows(parameters), *slots
        for theta, fast, slow, square, g in changed_blocks(skip_flag(self), changed, gradients(parameters)):
            g = g.type_as(fast)
            advance_moments(fast, square, g, (beta1, beta2))
            slow.lerp_(g, slow_share)
            step = fast.div(1 - beta1**t).add_(slow, alpha=alpha)
            adam_step(theta, step, square, t=t, beta2=beta2, eps=group["eps"], lr=lr, decay=decay)


def slow_decay(step: int, beta1: float, beta3: float, warmup: int | None) -> float:
    """beta3 in a step, counted from 1: its half-life rises linearly from that of beta1."""
    if not warmup or step >= warmup:
        return beta3

    def half_life(beta: float) -> float:
        return math.log(0.5) / math.log(beta + 1e-8) - 1

    share = step / warmup
    return float(0.5 ** (1 / ((1 - share) * half_life(beta1) + share * half_life(beta3) + 1)))


@OPTIMIZERS.register
class AdEMAMixConfig(OptimizerConfig):
    """AdEMAMix: Adam with a second, much slower average of the gradient (arXiv 2409.03137)."""

    method_family: ClassVar[str] = "Adam"
    method_source: ClassVar[str] = "arXiv 2409.03137"

    type: Literal["ademamix"] = "ademamix"
    betas: tuple[Decay, Decay, Decay] = Field(
        (0.9, 0.999, 0.9999), description="decays of the fast average, the second moment and the slow average"
    )
    alpha: float = Field(2.0, ge=0, description="weight of the slow average")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    alpha_warmup: int | None = Field(
        None, ge=1, description="steps over which alpha rises, for the authors the whole run; null: 0"
    )
    beta3_warmup: int | None = Field(
        None, ge=1, description="steps over which the slow average's decay rises; null: 0"
    )

    def build(self, entries: Sequence[Entry]) -> AdEMAMix:
        """The optimizer; its groups are the matrices and the vectors."""
        groups = decayed_groups(entries, self.lr, self.weight_decay)
        return AdEMAMix(groups, **self.model_dump(exclude={"type", "weight_decay"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Three averages."""
        return dict.fromkeys(SLOTS, entry.spec.shape)
