"""AdamW: torch's, with decoupled weight decay on matrices only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch.optim import AdamW

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay, TwoMoments

if TYPE_CHECKING:
    from zoo.init.transfer import UpdateSize


@OPTIMIZERS.register
class AdamWConfig(TwoMoments):
    """AdamW: torch's fused implementation; weight decay on matrices, not on vectors."""

    optimizer_class: ClassVar = AdamW

    type: Literal["adamw"] = "adamw"
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="decays of the running averages, in [0, 1)")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")

    @property
    def update_size(self) -> UpdateSize:
        """Entries of an update are of the size of lr."""
        return "entry"
