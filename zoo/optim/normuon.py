"""NorMuon: Muon whose rows are brought to one size by a running second moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.adamw import AdamWConfig
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.combined import Combined
from zoo.optim.muon import LEAST_NORM, is_hidden, newton_schulz
from zoo.optim.optimizer import ZooOptimizer, due
from zoo.optim.sharding import local, placed_like, reduced_like
from zoo.optim.slots import slot_dtype
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import whole

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.init.transfer import UpdateSize
    from zoo.spec import ParamSpec

LEAST = 1e-10


class NorMuon(ZooOptimizer):
    r"""NorMuon (arXiv 2510.05491), for matrices; a convolution's kernel is the matrix of its rows.

        m  <- momentum m + (1 - momentum) g
        U  <- Newton-Schulz(momentum m + (1 - momentum) g), or of m without nesterov
        s  <- beta2 s + (1 - beta2) mean of U^2 over each row
        U  <- U / (sqrt(s) + 1e-10), put back to the norm it had
        W  <- (1 - lr weight_decay) W - lr sqrt(max(1, A / B)) U

    s needs no bias correction: the norm takes the common factor away. Sharded parameters are orthogonalised
    whole on every rank.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        momentum: float = 0.95,
        beta2: float = 0.95,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
        *,
        nesterov: bool = True,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: tensors of at least two dimensions, or groups of them.
            lr: learning rate.
            momentum: decay of the running average of the gradient.
            beta2: decay of the rows' second moment.
            weight_decay: decoupled weight decay, times lr.
            ns_steps: steps of the Newton-Schulz iteration.
            nesterov: look one step ahead.
            dtype: precision of the Newton-Schulz iteration.

        Raises:
            ConfigError: a vector.
        """
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "ns_steps": ns_steps,
            "nesterov": nesterov,
            "dtype": dtype,
        }
        super().__init__(params, defaults)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.dim() < 2:
                raise ConfigError(f"NorMuon: shape {tuple(parameter.shape)}, expected a matrix")

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """One running average of the gradient, and one number per row."""
        dtype, columns = slot_dtype(parameter), tuple(range(1, parameter.dim()))
        return {
            "momentum_buffer": reduced_like(parameter, (), dtype),
            "second_momentum_buffer": reduced_like(parameter, columns, dtype),
        }

    def update(self) -> None:
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in due(group):
                self._move(parameter, group)

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state_of(parameter, group)
        m, second = state["momentum_buffer"], state["second_momentum_buffer"]
        assert parameter.grad is not None  # the parameter is due
        g = parameter.grad.to(m.dtype)
        m.lerp_(g, 1 - group["momentum"])
        averaged = whole(g.lerp(m, group["momentum"]) if group["nesterov"] else m)
        x = averaged.flatten(1).to(group["dtype"])
        matrix = newton_schulz(x / (x.norm() + LEAST_NORM), group["ns_steps"]).to(m.dtype)
        norm = matrix.norm()
        rows = whole(second).view(-1, 1).lerp(matrix.square().mean(1, keepdim=True), 1 - group["beta2"])
        second.copy_(placed_like(rows.view(second.shape), second))
        matrix = matrix / (rows.sqrt() + LEAST)
        matrix = matrix * (norm / (matrix.norm() + LEAST))
        lr, theta = float(group["lr"]), local(parameter)
        factor = math.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
        theta.mul_(1 - lr * group["weight_decay"])
        theta.add_(local(placed_like(matrix.view(averaged.shape), parameter)), alpha=-lr * factor)


@OPTIMIZERS.register
class NorMuonConfig(OptimizerConfig):
    """NorMuon: Muon with rows of one size (arXiv 2510.05491); AdamW for all that is no hidden matrix."""

    type: Literal["normuon"] = "normuon"
    momentum: Decay = Field(0.95, description="decay of the running average of the gradient")
    beta2: Decay = Field(0.95, description="decay of the rows' second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    ns_steps: int = Field(5, ge=1, description="steps of the Newton-Schulz iteration")
    nesterov: bool = Field(True, description="look one step ahead")
    rest: AdamWConfig = Field(AdamWConfig(lr=3e-3), description="AdamW for all other parameters")

    @property
    def update_size(self) -> UpdateSize:
        """Singular values are of the size of lr."""
        return "spectral"

    def build(self, entries: Sequence[Entry]) -> Combined:
        """NorMuon and AdamW, if something is left for it, as one.

        Raises:
            ConfigError: a model without hidden matrices.
        """
        hidden = [entry for entry in entries if is_hidden(entry.spec)]
        if not hidden:
            raise ConfigError("optimizer: normuon is for hidden matrices, and the model has none")
        options = self.model_dump(exclude={"type", "rest"})
        groups = grouped(hidden, self.lr, lambda entry: {"weight_decay": self.weight_decay})
        parts: list[Optimizer] = [NorMuon(groups, **options)]
        if rest := [entry for entry in entries if not is_hidden(entry.spec)]:
            parts.append(self.rest.build(rest))
        return Combined(parts)

    def largest_step(self, spec: ParamSpec) -> float:
        """AdamW's."""
        return self.rest.largest_step(spec)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """An average and a number per row of a hidden matrix; otherwise AdamW's."""
        if not is_hidden(entry.spec):
            return self.rest.slots(entry)
        shape = entry.spec.shape
        return {"momentum_buffer": shape, "second_momentum_buffer": (shape[0], *(1 for _ in shape[1:]))}
