"""A plugin: the optimizer Lion as a choice of `optimizer.type`.

Chen et al., Symbolic Discovery of Optimization Algorithms (arXiv 2302.06675), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch.optim import Optimizer

from zoo.config.registry import OPTIMIZERS
from zoo.init.registry import Entry
from zoo.optim.base import OptimizerConfig, grouped


class Lion(Optimizer):
    """theta <- theta - lr (sign(beta1 m + (1 - beta1) g) + decay theta);  m <- beta2 m + (1 - beta2) g."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    m = self.state[parameter].setdefault("m", torch.zeros_like(parameter))
                    update = torch.lerp(parameter.grad, m, beta1).sign_()
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(update, alpha=group["lr"])
                    m.lerp_(parameter.grad, 1 - beta2)


@OPTIMIZERS.register
class LionConfig(OptimizerConfig):
    """Lion: the sign of an average of gradients."""

    type: Literal["lion"] = "lion"
    betas: tuple[float, float] = Field((0.9, 0.99), description="averages: in the update, and kept")
    weight_decay: float = Field(0.0, ge=0, description="of matrices")

    def build(self, entries: Sequence[Entry]) -> Lion:
        """Two groups: matrices, which decay, and everything else."""

        def options(entry: Entry) -> dict[str, Any]:
            return {"weight_decay": self.weight_decay if entry.decays else 0.0}

        return Lion(grouped(entries, self.lr, options), {"lr": self.lr, "betas": self.betas})

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """One average of the parameter's shape."""
        return {"m": entry.spec.shape}
