"""Lion: the sign of an average of the gradient, and one slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, decayed_groups
from zoo.optim.blocks import changed_blocks
from zoo.optim.cautious import agreeing, check_cautious
from zoo.optim.moments import decay_weights
from zoo.optim.optimizer import ZooOptimizer, due, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import NOT_NEGATIVE, SWITCH, TWO_DECAYS
from zoo.optim.sharding import complete, reduced_like, totals
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import slot_dtype

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.spec import ParamSpec


class Lion(ZooOptimizer):
    """Lion (Chen et al., arXiv 2302.06675, Program 1), and its cautious form (arXiv 2411.16085).

    In each step::

        u      <- sign(beta1 m + (1 - beta1) g)
        theta  <- (1 - lr weight_decay) theta - lr u
        m      <- beta2 m + (1 - beta2) g

    The cautious form drops the entries of u whose sign is not that of g, and multiplies the others by
    n / (kept + 1), n being the number of entries.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": TWO_DECAYS,
        "weight_decay": NOT_NEGATIVE,
        "cautious": SWITCH,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        cautious: bool = False,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate, three to ten times below AdamW's.
            betas: share of the average in the update, and decay of the average.
            weight_decay: decoupled weight decay, times lr.
            cautious: leave out entries that point against the gradient.

        Raises:
            ConfigError: A value is out of range.
        """
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "cautious": cautious}
        super().__init__(params, defaults)

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """One running average."""
        return {"exp_avg": reduced_like(parameter, (), slot_dtype(parameter))}

    def update(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = due(group)
            for parameter in parameters:
                self.state_of(parameter, group)
            if group["cautious"]:
                self._move_cautiously(parameters, group)
            else:
                self._move(parameters, group)

    def _move(self, parameters: Sequence[Tensor], group: ParamGroup) -> None:
        (beta1, beta2), lr = group["betas"], float(group["lr"])
        changed = local_rows(parameters), self.held(parameters, "exp_avg")
        for theta, m, g in changed_blocks(skip_flag(self), changed, gradients(parameters)):
            g = g.type_as(m)
            update = g.lerp(m, beta1).sign_()
            decay_weights(theta, lr * group["weight_decay"])
            theta.add_(update, alpha=-lr)
            m.lerp_(g, 1 - beta2)

    def _move_cautiously(self, parameters: Sequence[Tensor], group: ParamGroup) -> None:
        """Keep the updates until the number of entries that point along g is known for whole parameters."""
        (beta1, beta2), lr = group["betas"], float(group["lr"])
        thetas, averages = local_rows(parameters), self.held(parameters, "exp_avg")
        grads, skip = gradients(parameters), skip_flag(self)
        kept, updates = totals(parameters), []
        for m, _, g, count in changed_blocks(skip, [averages], thetas, grads, kept):
            g = g.type_as(m)
            update = g.lerp(m, beta1).sign_()
            mask = agreeing(update, g)
            count.add_(mask.sum())
            updates.append(update.mul_(mask))
            m.lerp_(g, 1 - beta2)
        complete(kept, parameters)
        growth = [p.numel() / (count + 1) for p, count in zip(parameters, kept, strict=True)]
        blocks = changed_blocks(skip, [thetas], averages, grads, growth)
        for (theta, _, _, factor), update in zip(blocks, updates, strict=True):
            decay_weights(theta, lr * group["weight_decay"])
            theta.addcmul_(update, factor, value=-lr)


@OPTIMIZERS.register
class LionConfig(OptimizerConfig):
    """Lion: the sign of an average of the gradient (arXiv 2302.06675); rates 3 to 10 times below AdamW's."""

    method_family: ClassVar[str] = "sign"
    method_source: ClassVar[str] = "arXiv 2302.06675"

    type: Literal["lion"] = "lion"
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.99), description="share of the average in the update, and its decay"
    )
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    cautious: bool = Field(False, description="leave out entries that point against the gradient")

    @model_validator(mode="after")
    def _cautious_has_momentum(self) -> Self:
        check_cautious(self.cautious, self.betas[0])
        return self

    def build(self, entries: Sequence[Entry]) -> Lion:
        """The optimizer; its groups are the matrices and the vectors."""
        groups = decayed_groups(entries, self.lr, self.weight_decay)
        return Lion(groups, lr=self.lr, betas=self.betas, cautious=self.cautious)

    def largest_step(self, spec: ParamSpec) -> float:
        """The learning rate, by which every entry moves."""
        return self.lr

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """One running average."""
        return {"exp_avg": entry.spec.shape}
