"""Muon: orthogonalised updates of hidden matrices, and another optimizer for all other parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adamw import AdamWConfig
from zoo.optim.amos import AmosConfig
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.combined import Combined
from zoo.optim.optimizer import ZooOptimizer, due
from zoo.optim.sharding import local, placed_like, reduced_like
from zoo.optim.slots import slot_dtype
from zoo.spec import ParamSpec, Role
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import whole

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.init.transfer import UpdateSize

OUTSIDE = frozenset({"vocab", "classes", "image"})
"""Axes of a model's inputs and outputs: a kernel with one of them is no hidden matrix."""

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's coefficients of x, x^3 and x^5: a steep slope at 0, and results between .5 and 1.5."""

LEAST_NORM = 1e-7

Adjustment = Literal["match_rms_adamw", "original"]


class Muon(ZooOptimizer):
    r"""Muon for hidden matrices (K. Jordan, 2024; Moonshot, arXiv 2502.16982).

    With gradient g of an (A, B) matrix and learning rate lr::

        m      <- momentum m + (1 - momentum) g
        u      <- momentum m + (1 - momentum) g  with nesterov, otherwise m
        O      <- Newton-Schulz(u): u with all singular values near 1
        theta  <- (1 - lr weight_decay) theta - lr r O
        r       = 0.2 sqrt(max(A, B)) with "match_rms_adamw", sqrt(max(1, A / B)) with "original"

    Unlike torch's Muon, this one also trains parameters of more than two dimensions (a convolution's
    kernel is flattened to a matrix of its rows) and sharded ones: every rank orthogonalises the whole
    matrix, in bfloat16, and keeps its rows.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
        *,
        nesterov: bool = True,
        adjust: Adjustment = "match_rms_adamw",
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: Tensors of at least two dimensions, or groups of them.
            lr: The learning rate; ``group["lr"]`` may change at every step.
            momentum: The decay of the running average of the gradient.
            weight_decay: The decoupled weight decay, which is multiplied by lr.
            ns_steps: The number of steps of the Newton-Schulz iteration.
            nesterov: Whether to use Nesterov momentum.
            adjust: How the learning rate depends on the shape. With "match_rms_adamw" an update has the
                root mean square of AdamW's, so that AdamW's learning rates fit.

        Raises:
            ConfigError: A parameter has fewer than two dimensions.
        """
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "ns_steps": ns_steps,
            "nesterov": nesterov,
            "adjust": adjust,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() < 2:
                    raise ConfigError(f"Muon: shape {tuple(parameter.shape)}, expected a matrix")

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step: zeros, on its device and sharded as it is."""
        return {"momentum_buffer": reduced_like(parameter, (), slot_dtype(parameter))}

    def update(self) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in due(group):
                self._move(parameter, group)

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        m = self.state_of(parameter, group)["momentum_buffer"]
        assert parameter.grad is not None  # for the type checker: the parameter is due
        g = parameter.grad.to(m.dtype)
        m.lerp_(g, 1 - group["momentum"])
        u = whole(g.lerp(m, group["momentum"]) if group["nesterov"] else m)
        matrix = u.flatten(1)
        update = placed_like(orthogonal(matrix, group["ns_steps"]).view_as(u), parameter)
        lr = float(group["lr"])
        theta = local(parameter)
        theta.mul_(1 - lr * group["weight_decay"])
        theta.add_(local(update), alpha=-lr * adjustment(matrix.shape, group["adjust"]))


def orthogonal(matrix: Tensor, steps: int) -> Tensor:
    """About U V^T of `matrix` = U S V^T, with singular values between .5 and 1.5.

    Args:
        matrix: (A, B), any floating point dtype.
        steps: The number of steps of the Newton-Schulz iteration.

    Returns:
        (A, B) bfloat16.
    """
    x = matrix.bfloat16()
    return newton_schulz(x / x.norm().clamp(min=LEAST_NORM), steps)


def newton_schulz(matrix: Tensor, steps: int) -> Tensor:
    """Bring all singular values near 1.

    Args:
        matrix: (A, B), of a norm of 1 at most.
        steps: of the iteration.

    Returns:
        (A, B), of the dtype of `matrix`.
    """
    a, b, c = QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def adjustment(shape: Sequence[int], adjust: Adjustment) -> float:
    """The factor on the learning rate of a matrix of `shape` (A, B)."""
    rows, columns = shape
    if adjust == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def is_hidden(spec: ParamSpec) -> bool:
    """Whether a parameter is a hidden matrix: a kernel without an axis of the model's inputs or outputs."""
    return spec.role in (Role.LINEAR, Role.CONV) and not OUTSIDE & set(spec.axes)


Rest = Annotated[AdamWConfig | AmosConfig, Field(discriminator="type")]


@OPTIMIZERS.register
class MuonConfig(OptimizerConfig):
    """Muon: orthogonal updates of hidden matrices; AdamW or Amos for all other parameters."""

    type: Literal["muon"] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the running average of the gradient")
    nesterov: bool = Field(True, description="Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    ns_steps: int = Field(5, ge=1, description="steps of the Newton-Schulz iteration")
    adjust: Adjustment = Field(
        "match_rms_adamw",
        description="factor on lr of an (A, B) matrix: 0.2 sqrt(max(A, B)), or sqrt(max(1, A/B))",
    )
    rest: Rest | None = Field(
        None, description="for all other parameters; null: AdamW with this lr and weight_decay"
    )

    @model_validator(mode="after")
    def _rest_has_a_rate(self) -> Self:
        if self.rest is None and self.adjust == "original":
            raise ValueError(
                "with adjust: original the learning rate does not fit AdamW; expected "
                "`rest: {type: adamw, lr: ...}`"
            )
        return self

    @property
    def others(self) -> AdamWConfig | AmosConfig:
        """The optimizer of everything but hidden matrices."""
        return self.rest or AdamWConfig(lr=self.lr, weight_decay=self.weight_decay)

    @property
    def uses_eta(self) -> bool:
        """Whether the other optimizer uses any eta."""
        return self.others.uses_eta

    def reads_eta(self, spec: ParamSpec) -> bool:
        """Whether the other optimizer uses it; Muon uses none."""
        return not is_hidden(spec) and self.others.reads_eta(spec)

    @property
    def update_size(self) -> UpdateSize | None:
        """Singular values are of the size of lr, unless lr is adjusted to AdamW's; AdamW trains the rest."""
        return "spectral" if self.adjust == "original" and self.others.update_size == "entry" else None

    def build(self, entries: Sequence[Entry]) -> Combined:
        """Muon and the other optimizer, if there are parameters for it, as one.

        Raises:
            ConfigError: The model has no hidden matrices.
        """
        hidden = [entry for entry in entries if is_hidden(entry.spec)]
        if not hidden:
            raise ConfigError("optimizer: muon is for hidden matrices, and the model has none")
        options = self.model_dump(exclude={"type", "rest"})
        groups = grouped(hidden, self.lr, lambda entry: {"weight_decay": self.weight_decay})
        parts: list[Optimizer] = [Muon(groups, **options)]
        if rest := [entry for entry in entries if not is_hidden(entry.spec)]:
            parts.append(self.others.build(rest))
        return Combined(parts)

    def largest_step(self, spec: ParamSpec) -> float | None:
        """That of the other optimizer."""
        return self.others.largest_step(spec)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """A running average for a hidden matrix; for other parameters the slots of the other optimizer."""
        return {"momentum_buffer": entry.spec.shape} if is_hidden(entry.spec) else self.others.slots(entry)
