"""torch's Adam, with the classic L2 decay on matrices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch.optim import Adam, Optimizer

from zoo.config.registry import OPTIMIZERS
from zoo.optim.base import OptimizerConfig, decayed_groups

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.init.transfer import UpdateSize
    from zoo.spec import ParamSpec

Decay = Annotated[float, Field(ge=0, lt=1)]


class TwoMoments(OptimizerConfig):
    """The settings that Adam and AdamW share."""

    optimizer_class: ClassVar[type[Adam]]

    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decays of the running averages, in [0, 1)")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of matrices")
    decays: Literal["matrices", "all"] = Field(
        "matrices", description="what weight decay acts on; all: as in the released code of the Amos paper"
    )
    fused: bool = Field(True, description="torch's fused kernel, which reads memory once")

    @model_validator(mode="after")
    def _all_of_a_decay(self) -> Self:
        # A decay of 0 that is written may be one of the values of a sweep.
        if self.decays == "all" and "weight_decay" not in self.model_fields_set:
            raise ValueError("decays: all has no effect without a decay; expected weight_decay as well")
        return self

    def decays_on(self, entry: Entry) -> bool:
        """Whether weight decay acts on a parameter, by the choice of `decays`."""
        return self.decays == "all" or entry.decays

    def build(self, entries: Sequence[Entry]) -> Optimizer:
        """torch's optimizer; matrices and vectors are in different groups."""
        groups = decayed_groups(entries, self.lr, self.weight_decay, self.decays_on, self.eps)
        return self.optimizer_class(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=self.fused)

    def largest_step(self, spec: ParamSpec) -> float:
        """The learning rate, because the ratio of the moments is 1 where all gradients are equal."""
        return self.lr

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The two moments."""
        return {"exp_avg": entry.spec.shape, "exp_avg_sq": entry.spec.shape}


@OPTIMIZERS.register
class AdamConfig(TwoMoments):
    """Adam: torch's fused implementation; weight decay is added to the gradient of matrices."""

    method_family: ClassVar[str] = "Adam"
    method_source: ClassVar[str] = "arXiv 1412.6980"

    optimizer_class: ClassVar = Adam

    type: Literal["adam"] = "adam"
    weight_decay: float = Field(0.0, ge=0, description="L2 decay of matrices, added to the gradient")

    @property
    def update_size(self) -> UpdateSize | None:
        """Entries of an update are of the size of lr; None with an L2 decay, which no rule covers."""
        return None if self.weight_decay else "entry"
