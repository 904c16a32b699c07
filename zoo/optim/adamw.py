"""AdamW: torch's, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from torch.optim import AdamW

from zoo.optim.base import OptimizerConfig, grouped
from zoo.schema import OPTIMIZERS

if TYPE_CHECKING:
    from zoo.init.registry import Entry


@OPTIMIZERS.register
class AdamWConfig(OptimizerConfig):
    """AdamW: torch's fused implementation; weight decay on matrices, not on vectors."""

    type: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = Field((0.9, 0.95), description="decays of the running averages, in [0, 1)")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    fused: bool = Field(True, description="one pass over memory")

    def build(self, entries: Sequence[Entry]) -> AdamW:
        """The optimizer; its groups are the matrices and the vectors."""
        groups = grouped(entries, lambda entry: {"weight_decay": self.weight_decay if entry.decays else 0.0})
        return AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=self.fused)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The two moments."""
        return {"exp_avg": entry.spec.shape, "exp_avg_sq": entry.spec.shape}
