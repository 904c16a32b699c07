"""A reparameterisation: a trained factor in front of what ends a residual branch, small at the start.

LayerScale (Touvron et al., 2021) with one factor for each matrix.
"""

from typing import Literal

from pydantic import Field

from zoo import REPARAMS, Declared, Init, ParamSpec, Reparam
from zoo.reparam.gate import attach_gate


@REPARAMS.register
class BranchScale(Reparam):
    """A trained factor in front of each matrix that ends a residual branch."""

    type: Literal["branch-scale"] = "branch-scale"
    start: float = Field(0.1, gt=0, description="the factor at the start")

    def acts_on(self, spec: ParamSpec) -> bool:
        """Matrices that end a residual branch, of which a model with N layers has 2N."""
        return spec.residual_branches > 1

    def attach(self, p: Declared, init: Init) -> None:
        """Declare the factor; the matrix is drawn larger, so that both together start as `init` says."""
        attach_gate(p.module, p.local, self.start, trained=True)
