"""AdamW in its cautious form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.optim.cautious import LEAST_SHARE, agreeing
from zoo.optim.moments import advance_moments, denominator
from zoo.optim.optimizer import ZooOptimizer, due, gradient
from zoo.optim.sharding import reduced_like
from zoo.optim.slots import slot_dtype
from zoo.utils.sharded import local

SLOTS = ("exp_avg", "exp_avg_sq")


class CautiousAdamW(ZooOptimizer):
    r"""Cautious AdamW (Liang et al., arXiv 2411.16085), eps being added as in AdamW.

    m, v   <- the moments of AdamW
    mask    = [m g > 0] / max(share of ones, 1e-3)
    theta  <- (1 - lr weight_decay) theta - lr mask m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
    """

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
        """
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Two moments and the number of steps."""
        averages = {slot: reduced_like(parameter, (), slot_dtype(parameter)) for slot in SLOTS}
        return {"step": torch.zeros((), dtype=torch.float32), **averages}

    def update(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            parameters, lr, betas = due(group), float(group["lr"]), group["betas"]
            states = [self.state_of(p, group) for p in parameters]
            grads = [gradient(p) for p in parameters]
            firsts = [local(state["exp_avg"]) for state in states]
            for state, m, g in zip(states, firsts, grads, strict=True):
                state["step"] += 1
                advance_moments(m, local(state["exp_avg_sq"]), g, betas)
            masks, kept = agreeing(firsts, grads, parameters)
            for parameter, state, m, mask, count in zip(parameters, states, firsts, masks, kept, strict=True):
                t, theta = int(state["step"].item()), local(parameter)
                share = (count / parameter.numel()).clamp_min(LEAST_SHARE)
                step = mask.mul_(m).div_(denominator(local(state["exp_avg_sq"]), betas[1], t, group["eps"]))
                theta.mul_(1 - lr * group["weight_decay"])
                theta.add_(step.div_(share), alpha=-lr / (1 - betas[0] ** t))
