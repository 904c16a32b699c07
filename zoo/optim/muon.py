"""Muon: orthogonalised updates of hidden matrices, and another optimizer for all other parameters."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.kernels.stacks import stack
from zoo.optim.adamw import AdamWConfig
from zoo.optim.amos import AmosConfig
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.blocks import blocks, changed_blocks
from zoo.optim.cautious import agreeing, check_cautious, shares
from zoo.optim.combined import Combined
from zoo.optim.distributed_matrices import map_whole_matrices
from zoo.optim.matrices import MATRIX, MatrixLayout, is_hidden, layout_of, plain
from zoo.optim.moments import decay_weights
from zoo.optim.newton_schulz import Coefficients, flops, orthogonal
from zoo.optim.optimizer import ZooOptimizer, due, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import COUNT, DECAY, FLOATING, NOT_NEGATIVE, SWITCH, OneOf
from zoo.optim.sharding import complete, reduced_like, totals
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import batches, slot_dtype
from zoo.spec import ParamSpec
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import local

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.init.transfer import UpdateSize


AT_ONCE = 1 << 26
"""Number of entries of the matrices of one shape that are orthogonalised together."""

UpdateFactor = Literal["match_adam", "shape", "spectral"]

FORMER_NAMES = {"match_rms_adamw": "match_adam", "original": "shape"}
"""Names that update factors had up to version 0.2."""


class Muon(ZooOptimizer):
    r"""Muon for hidden matrices (K. Jordan, 2024; Moonshot, arXiv 2502.16982).

    With gradient g of an (A, B) matrix and learning rate lr::

        m      <- momentum m + (1 - momentum) g
        u      <- momentum m + (1 - momentum) g  with nesterov, otherwise m
        O      <- Newton-Schulz(u): u with all singular values near 1
        theta  <- (1 - lr weight_decay) theta - lr r O
        r       = 0.2 sqrt(max(A, B)) with "match_adam" (arXiv 2502.16982), sqrt(max(1, A / B)) with "shape"
                  (K. Jordan), sqrt(A / B) with "spectral" (arXiv 2310.17813)

    The cautious form (arXiv 2411.16085) first leaves out the entries of u where m g is not above 0, and
    divides the others by their share.

    Unlike torch's Muon, this one also trains parameters of more than two dimensions (a convolution's
    kernel is flattened to a matrix of its rows, a stack of experts is as many matrices) and sharded ones:
    each whole matrix is orthogonalised by one rank, in bfloat16. Matrices of one shape are orthogonalised
    together.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "momentum": DECAY,
        "weight_decay": NOT_NEGATIVE,
        "ns_steps": COUNT,
        "nesterov": SWITCH,
        "adjust": OneOf(get_args(UpdateFactor)),
        "coefficients": OneOf(get_args(Coefficients)),
        "cautious": SWITCH,
        "dtype": FLOATING,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
        *,
        nesterov: bool = True,
        adjust: UpdateFactor = "match_adam",
        coefficients: Coefficients = "newton_schulz",
        cautious: bool = False,
        layout: MatrixLayout = MATRIX,
        dtype: torch.dtype = torch.bfloat16,
        further: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: Tensors of at least two dimensions, or groups of them.
            lr: The learning rate; ``group["lr"]`` may change at every step.
            momentum: The decay of the running average of the gradient.
            weight_decay: The decoupled weight decay, which is multiplied by lr.
            ns_steps: The number of steps of the Newton-Schulz iteration.
            nesterov: Whether to use Nesterov momentum.
            adjust: How the learning rate depends on the shape. With "match_adam" an update has the root
                mean square of AdamW's, so that AdamW's learning rates fit.
            coefficients: The coefficients of the Newton-Schulz iteration, see `orthogonal`.
            cautious: Whether entries that point against the gradient are left out.
            layout: The matrices that the parameters of a group consist of.
            dtype: The precision of the Newton-Schulz iteration.
            further: The defaults that a subclass adds.

        Raises:
            ConfigError: A value is out of range, or a parameter has fewer than two dimensions.
        """
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "ns_steps": ns_steps,
            "nesterov": nesterov,
            "adjust": adjust,
            "coefficients": coefficients,
            "cautious": cautious,
            **plain(layout),
            "dtype": dtype,
            **further,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group, whose `layout` is kept as plain values."""
        _with_plain_layout(param_group)
        super().add_param_group(param_group)

    def check(self, group: ParamGroup, place: str) -> None:
        """Check a group, whose parameters have to be matrices."""
        super().check(group, place)
        for parameter in group["params"]:
            if parameter.dim() < 2:
                raise ConfigError(f"{place}: shape {tuple(parameter.shape)}, expected a matrix")

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a pickled or saved state; that of zoo 0.2 has a `layout` in its groups."""
        super().__setstate__(state)
        for group in self.param_groups:
            _with_plain_layout(group)

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """The state of a parameter before its first step: zeros, on its device and sharded as it is."""
        return {"momentum_buffer": reduced_like(parameter, (), slot_dtype(parameter))}

    def update(self) -> None:
        """Update every matrix that has a gradient."""
        groups, parameters, averages = [], [], []
        for group in self.param_groups:
            members = due(group)
            groups += [group] * len(members)
            parameters += members
            averages += self._averages(members, group)

        def work(indices: Sequence[int], wholes: Sequence[Tensor]) -> list[Tensor]:
            return self._directions(wholes, [groups[i] for i in indices])

        updates = self.finished(map_whole_matrices(averages, work), parameters, groups)
        by_rate: dict[tuple[float, float], list[int]] = defaultdict(list)
        for i, (parameter, group) in enumerate(zip(parameters, groups, strict=True)):
            _, rows, columns = layout_of(group).shape_of(parameter.shape)
            lr = float(group["lr"])
            factor = update_factor(rows, columns, group["adjust"])
            by_rate[lr * group["weight_decay"], -lr * factor].append(i)
        for (share, rate), indices in by_rate.items():
            thetas = local_rows([parameters[i] for i in indices])
            for theta, update in changed_blocks(skip_flag(self), [thetas], [updates[i] for i in indices]):
                decay_weights(theta, share)
                theta.add_(update.type_as(theta), alpha=rate)

    def _averages(self, parameters: Sequence[Tensor], group: ParamGroup) -> list[Tensor]:
        """u of every parameter, sharded as it is, in the precision of the iteration."""
        for parameter in parameters:
            self.state_of(parameter, group)
        moments, grads = self.held(parameters, "momentum_buffer"), gradients(parameters)
        averages = [torch.empty_like(parameter, dtype=group["dtype"]) for parameter in parameters]
        columns = [grads, [local(u) for u in averages]]
        kept = [totals(parameters)] if group["cautious"] else []
        for m, g, u, *counts in changed_blocks(skip_flag(self), [moments], *columns, *kept):
            g = g.type_as(m)
            m.lerp_(g, 1 - group["momentum"])
            if counts:
                counts[0].add_(agreeing(m, g).sum())
            else:
                u.copy_(g.lerp(m, group["momentum"]) if group["nesterov"] else m)
        for agreed in kept:
            complete(agreed, parameters)
            for m, g, u, share in blocks(moments, *columns, shares(agreed, parameters)):
                g = g.type_as(m)
                average = g.lerp(m, group["momentum"]) if group["nesterov"] else m
                u.copy_(agreeing(m, g).mul_(average).div_(share))
        return averages

    def _directions(self, averages: Sequence[Tensor], groups: Sequence[ParamGroup]) -> list[Tensor]:
        """O of whole parameters; the matrices of parameters of one shape are orthogonalised together."""
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, (u, group) in enumerate(zip(averages, groups, strict=True)):
            kind = u.shape, u.dtype, u.device
            alike[*kind, layout_of(group), group["ns_steps"], group["coefficients"]].append(i)
        by_index: dict[int, Tensor] = {}
        for indices in alike.values():
            for part in batches([averages[i].numel() for i in indices], AT_ONCE):
                few, group = indices[part], groups[indices[0]]
                together, layout = stack([averages[i] for i in few]), layout_of(group).stacked(len(few))
                directions = layout.join(self.direction(layout.split(together), group), together.shape)
                by_index |= zip(few, directions.unbind(), strict=True)
        return [by_index[i] for i in range(len(averages))]

    def direction(self, matrices: Tensor, group: ParamGroup) -> Tensor:
        """O of matrices, (n, A, B)."""
        return orthogonal(matrices, group["ns_steps"], group["coefficients"])

    def finished(
        self, updates: list[Tensor], parameters: Sequence[Tensor], groups: Sequence[ParamGroup]
    ) -> list[Tensor]:
        """The updates, computed from this rank's rows of the orthogonal matrices of each parameter."""
        return updates


def _with_plain_layout(group: ParamGroup) -> None:
    """Replace the `layout` of a group by plain values, which ``torch.load`` accepts by default."""
    if (layout := group.pop("layout", None)) is not None:
        group.update(plain(layout))


def update_factor(rows: int, columns: int, factor: UpdateFactor) -> float:
    """The factor r of an (A, B) matrix, see `Muon`."""
    if factor == "match_adam":
        return 0.2 * math.sqrt(max(rows, columns))
    share = rows / columns if columns else 1.0  # a matrix without columns has no update
    return math.sqrt(share if factor == "spectral" else max(1, share))


def present_name(value: object) -> object:
    """The present name of an update factor that was renamed."""
    if isinstance(value, str) and value in FORMER_NAMES:
        new = FORMER_NAMES[value]
        warnings.warn(f"optimizer.adjust: '{value}' is now called '{new}'", DeprecationWarning, stacklevel=2)
        return new
    return value


Rest = Annotated[AdamWConfig | AmosConfig, Field(discriminator="type")]


class OrthogonalConfig(OptimizerConfig):
    """The settings that Muon and NorMuon share."""

    optimizer_class: ClassVar[type[Muon]]

    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the running average of the gradient")
    nesterov: bool = Field(True, description="Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    ns_steps: int = Field(5, ge=1, description="steps of the Newton-Schulz iteration")
    coefficients: Coefficients = Field(
        "newton_schulz", description="coefficients of the iteration: Jordan's, or those of Polar Express"
    )
    adjust: Annotated[UpdateFactor, BeforeValidator(present_name)] = Field(
        "match_adam",
        description="factor on lr of an (A, B) matrix. match_adam: 0.2 sqrt(max(A, B)); "
        "shape: sqrt(max(1, A/B)); spectral: sqrt(A/B)",
    )
    split_heads: bool = Field(False, description="orthogonalise each head's part of a matrix by itself")
    rest: Rest | None = Field(
        None, description="optimizer of all other parameters; null: AdamW with this lr and weight_decay"
    )

    @model_validator(mode="after")
    def _rest_has_a_rate(self) -> Self:
        if self.rest is None and self.adjust != "match_adam":
            raise ValueError(
                f"with adjust: {self.adjust} the learning rate does not fit AdamW; expected "
                "`rest: {type: adamw, lr: ...}`"
            )
        return self

    @property
    def others(self) -> AdamWConfig | AmosConfig:
        """The optimizer of everything but hidden matrices."""
        return self.rest or AdamWConfig(lr=self.lr, weight_decay=self.weight_decay)

    def at_rate(self, lr: float) -> Self:
        """The same settings at another learning rate; that of the other optimizer is in proportion."""
        rest = self.rest and self.rest.at_rate(self.rest.lr * lr / self.lr)
        return self.model_copy(update={"lr": lr, "rest": rest})

    @property
    def waits_for(self) -> str | None:
        """The quantity that the other optimizer waits for."""
        return self.others.waits_for

    @property
    def uses_eta(self) -> bool:
        """Whether the other optimizer uses any eta."""
        return self.others.uses_eta

    def reads_eta(self, spec: ParamSpec) -> bool:
        """Whether the other optimizer uses the eta of a parameter; Muon uses none."""
        return not is_hidden(spec) and self.others.reads_eta(spec)

    def decays_on(self, entry: Entry) -> bool:
        """Whether weight decay acts on a parameter: that of the other optimizer on what is not hidden."""
        return entry.decays if is_hidden(entry.spec) else self.others.decays_on(entry)

    def shape_factor(self, spec: ParamSpec) -> float:
        """The factor r of the matrices that a hidden matrix consists of, see `update_factor`."""
        if not is_hidden(spec):
            return self.others.shape_factor(spec)
        _, rows, columns = MatrixLayout.of(spec, self.split_heads).shape_of(spec.shape)
        return update_factor(rows, columns, self.adjust)

    def update_flops(self, spec: ParamSpec) -> float:
        """The operations of the Newton-Schulz iteration, or those of the other optimizer's update."""
        if not is_hidden(spec):
            return self.others.update_flops(spec)
        count, rows, columns = MatrixLayout.of(spec, self.split_heads).shape_of(spec.shape)
        return count * flops(rows, columns, self.ns_steps)

    @property
    def update_size(self) -> UpdateSize | None:
        """Singular values are of the size of lr, unless lr is adjusted to AdamW's; AdamW trains the rest.

        With `split_heads` those of the whole matrix grow with the number of heads, whose updates overlap by
        an amount that depends on the gradients, so that no factor of the shape keeps them constant.
        """
        spectral = self.adjust != "match_adam" and not self.split_heads
        return "spectral" if spectral and self.others.update_size == "entry" else None

    def build(self, entries: Sequence[Entry]) -> Combined:
        """Muon and the other optimizer, if there are parameters for it, as one.

        Raises:
            ConfigError: No hidden matrix is trained, or `split_heads` is set and none consists of heads.
        """
        kind = self.optimizer_class.__name__.lower()
        hidden = [entry for entry in entries if is_hidden(entry.spec)]
        if not hidden:
            raise ConfigError(f"optimizer: {kind} is for hidden matrices, and none is trained")
        if self.split_heads and not any(MatrixLayout.of(entry.spec, heads=True).parts for entry in hidden):
            raise ConfigError("optimizer.split_heads has no effect: no matrix of the model consists of heads")
        options = self.model_dump(exclude={"type", "rest", "split_heads"})
        groups = grouped(
            hidden,
            self.lr,
            lambda entry: {
                "weight_decay": self.weight_decay,
                "layout": MatrixLayout.of(entry.spec, self.split_heads),
            },
        )
        parts: list[Optimizer] = [self.optimizer_class(groups, **options)]
        if rest := [entry for entry in entries if not is_hidden(entry.spec)]:
            parts.append(self.others.build(rest))
        return Combined(parts)

    def largest_step(self, spec: ParamSpec) -> float | None:
        """The largest step of the other optimizer, which trains all vectors."""
        return self.others.largest_step(spec)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """A running average for a hidden matrix; for other parameters the slots of the other optimizer."""
        return {"momentum_buffer": entry.spec.shape} if is_hidden(entry.spec) else self.others.slots(entry)


@OPTIMIZERS.register
class MuonConfig(OrthogonalConfig):
    """Muon: orthogonal updates of hidden matrices; AdamW or Amos for all other parameters."""

    method_family: ClassVar[str] = "orthogonal"
    method_source: ClassVar[str] = "Jordan 2024, arXiv 2502.16982"

    optimizer_class: ClassVar = Muon

    type: Literal["muon"] = "muon"
    cautious: bool = Field(False, description="leave out entries that point against the gradient")

    @model_validator(mode="after")
    def _cautious_has_momentum(self) -> Self:
        check_cautious(self.cautious, self.momentum)
        return self
