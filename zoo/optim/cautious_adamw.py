"""AdamW in its cautious form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.optim.blocks import changed_blocks
from zoo.optim.cautious import agreeing, shares
from zoo.optim.moments import adam_step, advance_moments, decay_weights
from zoo.optim.optimizer import CountingOptimizer, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import NOT_NEGATIVE, TWO_DECAYS
from zoo.optim.sharding import complete, totals
from zoo.optim.skip_flag import skip_flag

SLOTS = ("exp_avg", "exp_avg_sq")


class CautiousAdamW(CountingOptimizer):
    r"""Cautious AdamW (Liang et al., arXiv 2411.16085); eps is added as in AdamW.

    In step t = 1, 2, ...::

        m, v   <- the moments of AdamW
        mask    = [m g > 0] / max(share of ones, 1e-3)
        theta  <- (1 - lr weight_decay) theta - lr mask m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)

    The share of ones is that of a whole parameter.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": TWO_DECAYS,
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate.
            betas: decays of the two averages.
            eps: added to the root of the second moment.
            weight_decay: decoupled weight decay, times lr.

        Raises:
            ConfigError: A value is out of range.
        """
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def averages(self, parameter: Tensor) -> Sequence[str]:
        """The two moments."""
        return SLOTS

    def move(self, parameters: Sequence[Tensor], t: int, group: ParamGroup) -> None:
        """Take a step, see the class."""
        lr, betas = float(group["lr"]), group["betas"]
        grads, (firsts, seconds) = gradients(parameters), (self.held(parameters, slot) for slot in SLOTS)
        kept, skip = totals(parameters), skip_flag(self)
        for m, v, g, count in changed_blocks(skip, (firsts, seconds), grads, kept):
            g = g.type_as(m)
            advance_moments(m, v, g, betas)
            count.add_(agreeing(m, g).sum())
        complete(kept, parameters)
        thetas, columns = local_rows(parameters), (grads, firsts, seconds, shares(kept, parameters))
        for theta, g, m, v, share in changed_blocks(skip, [thetas], *columns):
            decay_weights(theta, lr * group["weight_decay"])
            step = agreeing(m, g.type_as(m)).mul_(m).div_(share)
            rate = lr / (1 - betas[0] ** t)
            adam_step(theta, step, v, t=t, beta2=betas[1], eps=group["eps"], lr=rate)
