"""MARS: AdamW on a gradient whose variance is reduced by the gradient before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.moments import advance_moments, denominator
from zoo.optim.optimizer import ZooOptimizer, due, gradient
from zoo.optim.sharding import reduced_like
from zoo.optim.slots import slot_dtype
from zoo.utils.sharded import local, sum_over_ranks

if TYPE_CHECKING:
    from zoo.init.registry import Entry


class MARS(ZooOptimizer):
    r"""MARS-AdamW with the gradient before as the correction (Yuan et al., arXiv 2411.10438).

    For a matrix, in step t = 1, 2, ...::

        c      <- g + gamma beta1 / (1 - beta1) (g - g_before),  c <- c / max(1, |c|)
        theta  <- AdamW with c in the place of g, decoupled decay

    Whatever is not two-dimensional takes AdamW with `lr_1d` / `lr` times the learning rate, `betas_1d` and
    `weight_decay_1d`. The exact form, which costs a second backward pass, is not offered.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gamma: float = 0.025,
        *,
        lr_1d: float = 3e-3,
        betas_1d: tuple[float, float] = (0.9, 0.95),
        weight_decay_1d: float = 0.1,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate of matrices.
            betas: decays of the two averages of matrices.
            eps: added to the root of the second moment.
            weight_decay: decoupled weight decay of matrices, times lr.
            gamma: how much of the difference of two gradients is added.
            lr_1d: learning rate of everything else, in proportion to `lr` as given here.
            betas_1d: decays of everything else.
            weight_decay_1d: weight decay of everything else.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "gamma": gamma,
            "betas_1d": betas_1d,
            "weight_decay_1d": weight_decay_1d,
            "factor_1d": lr_1d / lr,
        }
        super().__init__(params, defaults)

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Two moments, and of a matrix the gradient before."""
        names = ["exp_avg", "exp_avg_sq", *(["previous_grad"] if parameter.dim() == 2 else [])]
        averages = {slot: reduced_like(parameter, (), slot_dtype(parameter)) for slot in names}
        return {"step": torch.zeros((), dtype=torch.float32), **averages}

    def update(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = due(group)
            matrices = [p for p in parameters if p.dim() == 2]
            corrected = dict(zip(matrices, self._corrected(matrices, group), strict=True))
            for parameter in parameters:
                matrix = parameter in corrected
                lr, decay = float(group["lr"]), group["weight_decay" if matrix else "weight_decay_1d"]
                g = corrected[parameter] if matrix else gradient(parameter)
                betas = group["betas" if matrix else "betas_1d"]
                self._adamw(parameter, g, lr if matrix else lr * group["factor_1d"], betas, decay, group)

    def _corrected(self, matrices: Sequence[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """c of each matrix; the gradient is kept for the next step, as a copy."""
        factor = group["gamma"] * group["betas"][0] / (1 - group["betas"][0])
        corrected = []
        for parameter in matrices:
            g, before = gradient(parameter), local(self.state_of(parameter, group)["previous_grad"])
            corrected.append(torch.add(g, g - before, alpha=factor))
            before.copy_(g)
        squares = [c.square().sum() for c in corrected]
        sum_over_ranks(squares, matrices, [(0, 1)] * len(matrices))
        for c, square in zip(corrected, squares, strict=True):
            c.div_(square.sqrt().clamp_min(1))
        return corrected

    def _adamw(
        self,
        parameter: Tensor,
        g: Tensor,
        lr: float,
        betas: tuple[float, float],
        decay: float,
        group: dict[str, Any],
    ) -> None:
        state, (beta1, beta2) = self.state_of(parameter, group), betas
        m, v = local(state["exp_avg"]), local(state["exp_avg_sq"])
        state["step"] += 1
        t = int(state["step"].item())
        advance_moments(m, v, g, betas)
        step = (m / (1 - beta1**t)).div_(denominator(v, beta2, t, group["eps"]))
        theta = local(parameter)
        theta.add_(step.add_(theta, alpha=decay), alpha=-lr)


@OPTIMIZERS.register
class MARSConfig(OptimizerConfig):
    """MARS-AdamW: the difference of two gradients reduces the variance (arXiv 2411.10438)."""

    method_family: ClassVar[str] = "Adam"
    method_source: ClassVar[str] = "arXiv 2411.10438"

    type: Literal["mars"] = "mars"
    betas: tuple[Decay, Decay] = Field((0.95, 0.99), description="decays of the averages of matrices")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    gamma: float = Field(0.025, ge=0, description="how much of the difference of two gradients is added")
    lr_1d: float = Field(3e-3, gt=0, description="learning rate of all but matrices, before the schedule")
    betas_1d: tuple[Decay, Decay] = Field((0.9, 0.95), description="decays of the averages of all others")
    weight_decay_1d: float = Field(0.1, ge=0, description="weight decay of all others; the authors' default")

    def build(self, entries: Sequence[Entry]) -> MARS:
        """The optimizer; its groups are the parameters of one learning rate."""
        options = self.model_dump(exclude={"type"})
        return MARS(grouped(entries, self.lr, lambda entry: {}), **options)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Two moments, and of a matrix the gradient before."""
        shape = entry.spec.shape
        names = ("exp_avg", "exp_avg_sq", *(("previous_grad",) if len(shape) == 2 else ()))
        return dict.fromkeys(names, shape)
