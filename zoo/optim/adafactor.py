"""Adafactor: second moments factored into means over rows and columns, which take little memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.kernels.foreach import Many
from zoo.kernels.stacks import alike, stack
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.optimizer import ZooOptimizer, due, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import NOT_NEGATIVE, POSITIVE, SWITCH
from zoo.optim.sharding import complete, reduced_like
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import batches, slot_dtype
from zoo.optim.stacks import changed
from zoo.spec import reduced_shape
from zoo.utils.sharded import sum_over_ranks

if TYPE_CHECKING:
    from zoo.init.registry import Entry

ENTRIES_AT_A_TIME = 1 << 20
"""Number of entries of updates that are in memory at a time, unless a single stack has more."""


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
            steps = self.counted(parameters, group)
            together = alike(parameters, steps)
            stacks = [_Stack([parameters[i] for i in indices], steps[indices[0]]) for indices in together]
            for part in batches([s.entries for s in stacks], ENTRIES_AT_A_TIME):
                self._apply(stacks[part], self._updates(stacks[part], group), group)

    def _updates(self, stacks: Sequence[_Stack], group: ParamGroup) -> list[Tensor]:
        """G / sqrt(V) of each stack: of the local shards."""
        gradient_of = {s: s.gradient() for s in stacks}
        slots = self._advance(gradient_of, group)
        matrices = [s for s in stacks if s.first.dim() > 1]
        # The mean of R is that of C, which needs the sums over another dimension only.
        means = [slots[s, "col_var"].sum(-1, keepdim=True) for s in matrices]
        sum_over_ranks(means, [s.first for s in matrices], [(s.first.dim() - 1,) for s in matrices])
        mean_of = {s: mean / s.first.shape[-1] for s, mean in zip(matrices, means, strict=True)}
        updates = []
        for s, gradient in gradient_of.items():
            if s in mean_of:
                rows = (slots[s, "row_var"] / mean_of[s]).rsqrt()
                updates.append((gradient * rows).mul_(slots[s, "col_var"].rsqrt()))
            else:
                updates.append(gradient * slots[s, "variance"].rsqrt())
        return updates

    def _advance(
        self, gradient_of: Mapping[_Stack, Tensor], group: ParamGroup
    ) -> dict[tuple[_Stack, str], Tensor]:
        """Update the second moments: those of each slot of each stack, (members, ...)."""
        sums = []
        for s, gradient in gradient_of.items():
            squares = gradient.square()
            for slot, dims in reductions(s.first.dim()).items():
                of_stack = [d + 1 for d in dims]  # the first dimension is that of the members
                total = squares.sum(of_stack, keepdim=True) if dims else squares
                sums.append((s, slot, dims, total))
        sum_over_ranks([x[3] for x in sums], [x[0].first for x in sums], [x[2] for x in sums])
        moments = {}
        with changed(skip_flag(self), *[self.held(s.members, slot) for s, slot, _, _ in sums]) as slots:
            for (s, slot, dims, total), moment in zip(sums, slots, strict=True):
                mean = total.div_(math.prod(s.first.shape[d] for d in dims)).add_(group["eps"])
                moments[s, slot] = moment.lerp_(mean, s.step ** -group["decay"])
        return moments

    def _apply(self, stacks: Sequence[_Stack], updates: Sequence[Tensor], group: ParamGroup) -> None:
        """Update the parameters, each by at most a share of its root mean square."""
        with changed(skip_flag(self), *[local_rows(s.members) for s in stacks]) as parameters:
            factors = _factors(stacks, parameters, updates, group)
            for theta, update, by in zip(parameters, updates, factors, strict=True):
                theta.sub_(update.mul_(by))


@dataclass(frozen=True, eq=False)
class _Stack:
    """Parameters of one shape that take the step of the same number, see `alike`."""

    members: list[Tensor]
    step: int

    @property
    def first(self) -> Tensor:
        """A member; a sharded one is alone."""
        return self.members[0]

    @property
    def entries(self) -> int:
        """The number of entries of all members on all ranks, by which all ranks cut a step alike."""
        return len(self.members) * self.first.numel()

    def gradient(self) -> Tensor:
        """The gradients, (members, ...), in the precision of the slots."""
        return stack(gradients(self.members)).to(slot_dtype(self.first))


def reductions(dims: int) -> dict[str, tuple[int, ...]]:
    """The slots of a parameter of `dims` dimensions by name, each with the dimensions it averages over."""
    if dims > 1:
        return {"row_var": (dims - 1,), "col_var": (dims - 2,)}
    return {"variance": ()}


def _factors(
    stacks: Sequence[_Stack], parameters: Sequence[Tensor], updates: Sequence[Tensor], group: ParamGroup
) -> list[Tensor]:
    """The factor of the update of each member of each stack, (members, 1, ...)."""
    both, twice = (*updates, *parameters), (*stacks, *stacks)
    roots = Many([_norms(tensors.to(slot_dtype(tensors))) for tensors in both])
    roots.mul_(roots)
    complete(roots.tensors, [s.first for s in twice])
    for square, s in zip(roots.tensors, twice, strict=True):
        square.div_(s.first.numel())
    roots.sqrt_()
    clips = Many(roots.tensors[: len(stacks)]).div_(group["clip_threshold"]).clamp_min_(1)
    scales = Many(roots.tensors[len(stacks) :]).clamp_min_(group["eps_scale"])
    factors = []
    for s, scale, clip in zip(stacks, scales.tensors, clips.tensors, strict=True):
        alpha = float(group["lr"])
        if group["relative_step"]:
            alpha = min(alpha, s.step**-0.5)
        factors.append(alpha * scale / clip if group["scale_parameter"] else alpha / clip)
    return factors


def _norms(tensors: Tensor) -> Tensor:
    """The Euclidean norm of each tensor of a stack, (members, 1, ...), in one pass over memory."""
    entries = tensors[..., None]  # scalars have no dimension of their own, and no dimensions would mean all
    norms: Tensor = torch.linalg.vector_norm(entries, dim=list(range(1, entries.dim())), keepdim=True)
    return norms.squeeze(-1)


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

    def not_under_fixed_norm(self) -> str | None:
        """The reason with `relative_step`: the constraint dictates the length of a step, which it bounds."""
        if self.relative_step:
            return "relative_step has no effect on the matrices; expected a schedule, such as rsqrt"
        return None

    def build(self, entries: Sequence[Entry]) -> Adafactor:
        """The optimizer; each group has the parameters of one learning rate."""
        return Adafactor(grouped(entries, self.lr, lambda entry: {}), **self.model_dump(exclude={"type"}))

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Means over rows and columns; for a vector a value for every entry."""
        shape = entry.spec.shape
        return {slot: reduced_shape(shape, dims) for slot, dims in reductions(len(shape)).items()}
