"""NorMuon: Muon whose rows are brought to one size by a running second moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.adamw import AdamWConfig
from zoo.optim.muon import Muon, OrthogonalConfig, Rest, UpdateFactor, is_hidden
from zoo.optim.newton_schulz import orthogonal
from zoo.optim.sharding import placed_like, reduced_like
from zoo.optim.slots import slot_dtype
from zoo.utils.sharded import whole

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.spec import ParamSpec

LEAST = 1e-10


class NorMuon(Muon):
    r"""NorMuon (Li et al., arXiv 2510.05491): Muon with rows of one size.

    With the orthogonal U of Muon::

        s  <- beta2 s + (1 - beta2) mean of U^2 over each row
        U  <- U / (sqrt(s) + 1e-10), put back to the norm it had

    s needs no bias correction: the norm takes the common factor away. Rows are counted by the axes outside
    fan_in. Of heads that are split, each keeps its norm if they divide the rows.
    """

    by_matrix: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        beta2: float = 0.95,
        adjust: UpdateFactor = "shape",
        **options: Any,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: tensors of at least two dimensions, or groups of them.
            lr: learning rate.
            beta2: decay of the rows' second moment.
            adjust: as for `Muon`.
            **options: as for `Muon`.

        Raises:
            ConfigError: a vector.
        """
        super().__init__(params, lr, adjust=adjust, beta2=beta2, **options)

    def slots(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """One running average of the gradient, and one number per row."""
        columns = tuple(d for d in range(parameter.dim()) if d not in group["layout"].rows)
        second = reduced_like(parameter, columns, slot_dtype(parameter))
        return {**super().slots(parameter, group), "second_momentum_buffer": second}

    def direction(self, matrix: Tensor, group: dict[str, Any]) -> Tensor:
        """O of a matrix (A, B), whose norm is taken as in the authors' code."""
        return orthogonal(matrix.to(group["dtype"]), group["ns_steps"], group["coefficients"], added=True)

    def finished(self, update: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """Bring the rows of every matrix to one size; each matrix keeps its norm."""
        second, layout = self.state[parameter]["second_momentum_buffer"], group["layout"].of_rows
        matrices = layout.split(update)
        norms = matrices.norm(dim=(1, 2), keepdim=True)
        rows = layout.split(whole(second)).lerp(matrices.square().mean(2, keepdim=True), 1 - group["beta2"])
        second.copy_(placed_like(layout.join(rows, tuple(second.shape)), second))
        matrices = matrices / (rows.sqrt() + LEAST)
        matrices = matrices * (norms / (matrices.norm(dim=(1, 2), keepdim=True) + LEAST))
        joined: Tensor = layout.join(matrices, tuple(update.shape))
        return joined


@OPTIMIZERS.register
class NorMuonConfig(OrthogonalConfig):
    """NorMuon: Muon with rows of one size (arXiv 2510.05491); AdamW or Amos for all other parameters."""

    method_family: ClassVar[str] = "orthogonal"
    method_source: ClassVar[str] = "arXiv 2510.05491"

    optimizer_class: ClassVar = NorMuon

    type: Literal["normuon"] = "normuon"
    adjust: UpdateFactor = Field("shape", description="factor on lr of an (A, B) matrix, see muon")
    beta2: Decay = Field(0.95, description="decay of the rows' second moment")
    rest: Rest = Field(AdamWConfig(lr=3e-3), description="for all other parameters")

    def largest_step(self, spec: ParamSpec) -> float:
        """AdamW's."""
        return self.rest.largest_step(spec)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Those of Muon, and a number per row of a hidden matrix."""
        spec, slots = entry.spec, super().slots(entry)
        if is_hidden(spec):
            rows = (1 if axis in spec.fan_in else spec.size(axis) for axis in spec.axes)
            slots["second_momentum_buffer"] = tuple(rows)
        return slots
