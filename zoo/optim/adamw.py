"""torch's AdamW, with decoupled weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch.optim import AdamW, Optimizer

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay, TwoMoments
from zoo.optim.base import decayed_groups
from zoo.optim.cautious import check_cautious
from zoo.optim.cautious_adamw import CautiousAdamW

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.init.transfer import UpdateSize


@OPTIMIZERS.register
class AdamWConfig(TwoMoments):
    """AdamW: torch's fused implementation; weight decay on matrices, not on vectors."""

    method_family: ClassVar[str] = "Adam"
    method_source: ClassVar[str] = "arXiv 1711.05101"

    optimizer_class: ClassVar = AdamW

    type: Literal["adamw"] = "adamw"
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="decays of the running averages, in [0, 1)")
    eps: float = Field(
        1e-8,
        gt=0,
        description="added to the root of the second moment; the authors of the cautious form take 1e-6",
    )
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    cautious: bool = Field(
        False,
        description="leave out entries that point against the gradient (arXiv 2411.16085); there is no fused "
        "kernel for it",
    )

    @model_validator(mode="after")
    def _cautious_has_momentum(self) -> Self:
        check_cautious(self.cautious, self.betas[0])
        if self.cautious and not self.fused:
            raise ValueError(
                "fused: false has no effect with cautious, which has no fused kernel; leave it out"
            )
        return self

    @property
    def update_size(self) -> UpdateSize:
        """Entries of an update are of the size of lr."""
        return "entry"

    def build(self, entries: Sequence[Entry]) -> Optimizer:
        """torch's optimizer, or the cautious one."""
        if not self.cautious:
            return super().build(entries)
        groups = decayed_groups(entries, self.lr, self.weight_decay, self.decays_on, self.eps)
        return CautiousAdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps)
