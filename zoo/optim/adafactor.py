"""Adafactor: second moments factored into means over rows and columns, which take little memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.optimizer import ZooOptimizer, due, gradient
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import NOT_NEGATIVE, POSITIVE, SWITCH
from zoo.optim.sharding import reduced_like
from zoo.optim.skip_flag import restored_if, skip_flag
from zoo.optim.slots import batches, slot_dtype
from zoo.spec import reduced_shape
from zoo.utils.sharded import local, sum_over_ranks

if TYPE_CHECKING:
    from zoo.init.registry import Entry

ENTRIES_AT_A_TIME = 1 << 20
"""Number of entries of updates that are in memory at a time, unless a single tensor has more."""


class Adafactor(ZooOptimizer):
    r"""Adafactor without momentum (Shazeer and Stern, arXiv 1804.04235, Algorithms 4 and 5).

    In step t = 1, 2, ... with learning rate lr, gradient G and RMS(X) the root mean square of X::

        rho    <- lr, or min(lr, 1 / sqrt(t)) with relative_step
        alpha  <- max(eps_scale, RMS(theta)) rho, or rho without scale_parameter
        beta   <- 1 - t^-decay
        R      <- beta R + (1 - beta) mean of G^2 + eps over the last dimension
        C      <- beta C + (1 - beta) mean of G^2 + eps over the last but one
        V      <- R C / mean(R)
        U      <- G / sqrt(V)
        theta  <- theta - alpha U / max(1, RMS(U) / clip_threshold)

    A vector has no R and C, but V itself. torch's Adafactor always takes the minimum with 1 / sqrt(t), always
    scales, and puts a floor under mean(R) where the paper adds eps to G^2: with torch's default eps the steps
    of small gradients are too small, with the paper's a row without gradient becomes NaN.

    Slots are float32 (float64 for float64). Parameters may be sharded (DTensor): all means are
    over all ranks.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "decay": POSITIVE,
        "clip_threshold": replace(POSITIVE, expected="a number > 0", others=(math.inf,)),
        "eps": NOT_NEGATIVE,
        "eps_scale": NOT_NEGATIVE,
        "relative_step": SWITCH,
        "scale_parameter": SWITCH,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        decay: float = 0.8,
        clip_threshold: float = 1.0,
        eps: float = 1e-30,
        eps_scale: float = 1e-3,
        *,
        relative_step: bool = False,
        scale_parameter: bool = True,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: Parameters, or groups of them.
            lr: The learning rate; ``group["lr"]`` may change at every step.
            decay: The second moment decays with 1 - t^-decay in step t.
            clip_threshold: The largest root mean square of an update before it is scaled.
            eps: A constant added to the squares of the gradient.
            eps_scale: A lower bound of the parameter's root mean square.
            relative_step: Whether the learning rate is at most 1 / sqrt(t).
            scale_parameter: Whether the learning rate is multiplied by the parameter's root mean square.

        Raises:
            ConfigError: A value is out of range.
        """
        defaults = {
            "lr": lr,
            "decay": decay,
            "clip_threshold": clip_threshold,
            "eps": eps,
            "eps_scale": eps_scale,
            "relative_step": relative_step,
            "scale_parameter": scale_parameter,
        }
        super().__init__(params, defaults)

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """The state of a parameter before its first step: zeros, on its device and sharded as it is."""
        moments = {
            slot: reduced_like(parameter, dims, slot_dtype(parameter))
            for slot, dims in reductions(parameter.dim()).items()
        }
        return {"step": torch.zeros((), dtype=torch.float32), **moments}

    def update(self) -> None:
        """Take a step of Algorithm 4 with every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = due(group)
            for part in batches([local(p).numel() for p in parameters], ENTRIES_AT_A_TIME):
                self._advance(parameters[part], group)
                self._apply(parameters[part], group)

    def _advance(self, parameters: Sequence[Tensor], group: ParamGroup) -> None:
        """Update the second moments."""
        moments = []
        for parameter in parameters:
            state = self.state_of(parameter, group)
            state["step"] += 1
            squares = gradient(parameter).square()
            for slot, dims in reductions(parameter.dim()).items():
                total = squares.sum(dims, keepdim=True) if dims else squares
                moments.append((parameter, slot, dims, total))
        sum_over_ranks([m[3] for m in moments], [m[0] for m in moments], [m[2] for m in moments])
        for parameter, slot, dims, total in moments:
            state = self.state[parameter]
            mean = total.div_(math.prod(parameter.shape[d] for d in dims)).add_(group["eps"])
            with restored_if(skip_flag(self), [local(state[slot])]):
                local(state[slot]).lerp_(mean, state["step"].item() ** -group["decay"])

    def _apply(self, parameters: Sequence[Tensor], group: ParamGroup) -> None:
        """Update the parameters, each by at most a share of its root mean square."""
        updates = self._updates(parameters)
        squares = [_sum_of_squares(u) for u in updates]
        sizes = [_sum_of_squares(local(p).to(slot_dtype(p))) for p in parameters]
        everything = [tuple(range(p.dim())) for p in parameters]
        sum_over_ranks([*squares, *sizes], [*parameters, *parameters], [*everything, *everything])
        for parameter, update, square, size in zip(parameters, updates, squares, sizes, strict=True):
            alpha = float(group["lr"])
            if group["relative_step"]:
                alpha = min(alpha, self.state[parameter]["step"].item() ** -0.5)
            clip = ((square / parameter.numel()).sqrt() / group["clip_threshold"]).clamp_min(1)
            scale = (size / parameter.numel()).sqrt().clamp_min(group["eps_scale"])
            by = alpha * scale / clip if group["scale_parameter"] else alpha / clip
            with restored_if(skip_flag(self), [local(parameter.detach())]):
                local(parameter).sub_(update.mul_(by))

    def _updates(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """G / sqrt(V) of each parameter: the local shard."""
        matrices = [p for p in parameters if p.dim() > 1]
        # The mean of R is that of C, which needs the sums over another dimension only.
        means = [local(self.state[p]["col_var"]).sum(-1, keepdim=True) for p in matrices]
        sum_over_ranks(means, matrices, [(p.dim() - 1,) for p in matrices])
        mean_of = {p: mean / p.shape[-1] for p, mean in zip(matrices, means, strict=True)}
        updates = []
        for parameter in parameters:
            slots = {name: local(slot) for name, slot in self.state[parameter].items()}
            if parameter in mean_of:
                rows = (slots["row_var"] / mean_of[parameter]).rsqrt()
                updates.append((gradient(parameter) * rows).mul_(slots["col_var"].rsqrt()))
            else:
                updates.append(gradient(parameter) * slots["variance"].rsqrt())
        return updates


def reductions(dims: int) -> dict[str, tuple[int, ...]]:
    """The slots of a parameter of `dims` dimensions by name, each with the dimensions it averages over."""
    if dims > 1:
        return {"row_var": (dims - 1,), "col_var": (dims - 2,)}
    return {"variance": ()}


def _sum_of_squares(tensor: Tensor) -> Tensor:
    """The sum of squares, 0-dim, in one pass over memory."""
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm.square()


@OPTIMIZERS.register
class AdafactorConfig(OptimizerConfig):
    """Adafactor: second moments factored over the last two dimensions, clipped relative updates."""

    method_family: ClassVar[str] = "factored"
    method_source: ClassVar[str] = "arXiv 1804.04235"

    type: Literal["adafactor"] = "adafactor"
    decay: float = Field(0.8, gt=0, description="the second moment decays with 1 - t^-decay")
    clip_threshold: float = Field(1.0, gt=0, description="largest root mean square of an update")
    eps: float = Field(1e-30, gt=0, description="added to the squares of the gradient")
    eps_scale: float = Field(1e-3, gt=0, description="lower bound of a parameter's root mean square")
    relative_step: bool = Field(False, description="learning rate at most 1 / sqrt(t) in step t")
    scale_parameter: bool = Field(True, description="learning rate times the parameter's root mean square")

    @model_validator(mode="after")
    def _bound_is_used(self) -> Self:
        if not self.scale_parameter and self.eps_scale != type(self).model_fields["eps_scale"].default:
            raise ValueError("`eps_scale` has no effect with scale_parameter: false")
        return self

    def build(self, entries: Sequence[Entry]) -> Adafactor:
        """The optimizer; each group has the parameters of one learning rate."""
        return Adafactor(grouped(entries, self.lr, lambda entry: {}), **self.model_dump(exclude={"type"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Means over rows and columns; for a vector a value for every entry."""
        shape = entry.spec.shape
        return {slot: reduced_shape(shape, dims) for slot, dims in reductions(len(shape)).items()}
