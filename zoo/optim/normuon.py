"""NorMuon: Muon whose rows are brought to one size by a running second moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.kernels.stacks import alike, stack
from zoo.optim.adam import Decay
from zoo.optim.adamw import AdamWConfig
from zoo.optim.matrices import MatrixLayout, is_hidden, layout_of
from zoo.optim.muon import Muon, OrthogonalConfig, Rest, UpdateFactor
from zoo.optim.newton_schulz import orthogonal
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import DECAY
from zoo.optim.sharding import reduced_like
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import slot_dtype
from zoo.optim.stacks import changed
from zoo.utils.sharded import is_sharded, local, own_slices, sum_over_ranks
from zoo.utils.untyped import Passed

if TYPE_CHECKING:
    from zoo.init.registry import Entry

LEAST = 1e-10


class NorMuon(Muon):
    r"""NorMuon (Li et al., arXiv 2510.05491): Muon with rows of one size.

    With the orthogonal U of Muon::

        s  <- beta2 s + (1 - beta2) mean of U^2 over each row
        U  <- U / (sqrt(s) + 1e-10), put back to the norm it had

    s needs no bias correction, because the norm cancels the common factor. The axes outside fan_in count
    rows. With split heads that divide the rows, each head keeps its norm.
    """

    valid: ClassVar = {**Muon.valid, "beta2": DECAY}

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        beta2: float = 0.95,
        adjust: UpdateFactor = "shape",
        **options: Passed,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: tensors of at least two dimensions, or groups of them.
            lr: learning rate.
            beta2: decay of the rows' second moment.
            adjust: the rule that scales the step of a matrix by its shape, see `Muon`.
            **options: the other arguments of `Muon`.

        Raises:
            ConfigError: A value is out of range, or a parameter has fewer than two dimensions.
        """
        super().__init__(params, lr, adjust=adjust, further={"beta2": beta2}, **options)

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """A running average of the gradient, and one number per row."""
        columns = tuple(d for d in range(parameter.dim()) if d not in layout_of(group).rows)
        second = reduced_like(parameter, columns, slot_dtype(parameter))
        return {**super().slots(parameter, group), "second_momentum_buffer": second}

    def direction(self, matrices: Tensor, group: ParamGroup) -> Tensor:
        """O of matrices (n, A, B), whose norm is taken as in the authors' code."""
        return orthogonal(matrices, group["ns_steps"], group["coefficients"], added=True)

    def finished(
        self, updates: list[Tensor], parameters: Sequence[Tensor], groups: Sequence[ParamGroup]
    ) -> list[Tensor]:
        """Bring the rows of every matrix to one size; each matrix keeps its norm.

        Each row is divided by one number, so that the norm afterwards follows from the rows' sums of squares
        before. No matrix has to be whole: ranks exchange one number for each matrix.
        """
        layouts = [layout_of(group).of_rows for group in groups]
        keys = [(layout, group["beta2"]) for layout, group in zip(layouts, groups, strict=True)]
        members = alike(parameters, keys)
        stacks = [
            _RowStack(
                parameters[indices[0]],
                [self.state[parameters[i]]["second_momentum_buffer"] for i in indices],
                stack([updates[i] for i in indices]),
                layouts[indices[0]],
            )
            for indices in members
        ]
        squares = [s.sums_of_squares() for s in stacks]
        sum_over_ranks(squares, [s.parameter for s in stacks], [s.columns for s in stacks])
        roots = [
            s.roots(square, groups[indices[0]]["beta2"], skip_flag(self))
            for s, square, indices in zip(stacks, squares, members, strict=True)
        ]
        after = [square / root.square() for square, root in zip(squares, roots, strict=True)]
        norms = [s.of_matrices(sums) for s, sums in zip([*stacks, *stacks], [*squares, *after], strict=True)]
        sum_over_ranks(norms, [s.parameter for s in stacks] * 2, [s.layout.rows for s in stacks] * 2)
        for i, (s, indices) in enumerate(zip(stacks, members, strict=True)):
            before, now = norms[i].sqrt(), norms[i + len(stacks)].sqrt()
            s.update.mul_(s.of_rows(before / (now + LEAST)).div(roots[i]))
            for j, update in zip(indices, s.update.unbind(), strict=True):
                updates[j] = update
        return updates


class _RowStack:
    """Matrices of one shape whose rows are brought to one size together.

    Attributes:
        parameter: one of the parameters, sharded if it is the only one and sharded.
        seconds: the second moment of the rows of each, sharded as the parameters are.
        update: this rank's rows of the orthogonal matrices, (parameters, ...), in the precision of `seconds`.
        layout: the matrices that a parameter consists of.
        columns: the dimensions of a parameter that count columns.
    """

    def __init__(
        self, parameter: Tensor, seconds: Sequence[Tensor], update: Tensor, layout: MatrixLayout
    ) -> None:
        self.parameter, self.seconds, self.layout = parameter, seconds, layout
        self.update = update.to(seconds[0].dtype)
        self.columns = tuple(d for d in range(parameter.dim()) if d not in layout.rows)
        self._of_all, self._shape = layout.stacked(len(seconds)), (len(seconds), *seconds[0].shape)

    def sums_of_squares(self) -> Tensor:
        """The sum over this rank's columns of every row, with columns of size 1."""
        return self.update.square().sum([d + 1 for d in self.columns], keepdim=True)

    def roots(self, squares: Tensor, beta2: float, skip: Tensor | None) -> Tensor:
        """Advance the second moments by complete sums of squares; return their roots."""
        entries = self.parameter.numel() // max(self.seconds[0].numel(), 1)  # of none: no entries
        with changed(skip, [local(second) for second in self.seconds]) as (second,):
            return second.lerp_(squares / max(entries, 1), 1 - beta2).sqrt().add_(LEAST)

    def of_matrices(self, rows: Tensor) -> Tensor:
        """The sum over this rank's rows of every matrix, (matrices,); rows are those of all parameters."""
        second = self.seconds[0]
        if is_sharded(second):
            padded = rows.new_zeros(self._shape)  # where the rows of other ranks are
            padded[(slice(None), *own_slices(second))] = rows
            rows = padded
        return self._of_all.split(rows).sum((1, 2))

    def of_rows(self, matrices: Tensor) -> Tensor:
        """The value of its matrix, (matrices,), for each of this rank's rows."""
        second, shape = self.seconds[0], self._shape
        rows = self._of_all.join(matrices.view(-1, 1, 1).expand(self._of_all.shape_of(shape)), shape)
        return rows[(slice(None), *own_slices(second))] if is_sharded(second) else rows


@OPTIMIZERS.register
class NorMuonConfig(OrthogonalConfig):
    """NorMuon: Muon with rows of one size (arXiv 2510.05491); AdamW or Amos for all other parameters."""

    method_family: ClassVar[str] = "orthogonal"
    method_source: ClassVar[str] = "arXiv 2510.05491"

    optimizer_class: ClassVar = NorMuon

    type: Literal["normuon"] = "normuon"
    adjust: UpdateFactor = Field("shape", description="factor on lr of an (A, B) matrix, see `muon`")
    beta2: Decay = Field(0.95, description="decay of the rows' second moment")
    rest: Rest | None = Field(
        AdamWConfig(lr=3e-3),
        description="optimizer of all other parameters, with a rate of its own; null: AdamW with this lr "
        "and weight_decay",
    )

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The slots of Muon, and a number per row of a hidden matrix."""
        spec, slots = entry.spec, super().slots(entry)
        if is_hidden(spec):
            rows = (1 if axis in spec.fan_in else spec.size(axis) for axis in spec.axes)
            slots["second_momentum_buffer"] = tuple(rows)
        return slots
