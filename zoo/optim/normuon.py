"""NorMuon: Muon whose rows are brought to one size by a running second moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.optim.adam import Decay
from zoo.optim.adamw import AdamWConfig
from zoo.optim.matrices import is_hidden, layout_of
from zoo.optim.muon import Muon, OrthogonalConfig, Rest, UpdateFactor
from zoo.optim.newton_schulz import orthogonal
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import DECAY
from zoo.optim.sharding import reduced_like
from zoo.optim.skip_flag import restored_if, skip_flag
from zoo.optim.slots import slot_dtype
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
        seconds = [self.state[parameter]["second_momentum_buffer"] for parameter in parameters]
        layouts = [layout_of(group).of_rows for group in groups]
        columns = [
            tuple(d for d in range(parameter.dim()) if d not in layout.rows)
            for parameter, layout in zip(parameters, layouts, strict=True)
        ]
        updates = [update.to(second.dtype) for update, second in zip(updates, seconds, strict=True)]
        squares = [u.square().sum(dims, keepdim=True) for u, dims in zip(updates, columns, strict=True)]
        sum_over_ranks(squares, parameters, columns)
        roots, norms = [], []
        for square, second, parameter, group in zip(squares, seconds, parameters, groups, strict=True):
            mean = square / max(parameter.numel() // max(second.numel(), 1), 1)  # of none: no entries
            with restored_if(skip_flag(self), [local(second)]):
                roots.append(local(second).lerp_(mean, 1 - group["beta2"]).sqrt().add_(LEAST))
        after = [square / root.square() for square, root in zip(squares, roots, strict=True)]
        for sums in (squares, after):
            of_matrices = zip(sums, seconds, layouts, strict=True)
            norms += [
                layout.split(in_place(rows, second)).sum((1, 2)) for rows, second, layout in of_matrices
            ]
        rows = [layout.rows for layout in layouts]
        sum_over_ranks(norms, [*parameters, *parameters], [*rows, *rows])
        for i, (update, second, layout) in enumerate(zip(updates, seconds, layouts, strict=True)):
            before, now = norms[i].sqrt(), norms[i + len(updates)].sqrt()
            factors = (before / (now + LEAST)).view(-1, 1, 1)
            shape = tuple(second.shape)
            whole_factors = layout.join(factors.expand(layout.shape_of(shape)), shape)
            update.mul_(whole_factors[own_part(second)].div(roots[i]))
        return updates


def own_part(tensor: Tensor) -> tuple[slice, ...]:
    """The part of a tensor that this rank holds."""
    return own_slices(tensor) if is_sharded(tensor) else (slice(None),)


def in_place(rows: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor, with zeros where the parts of other ranks are."""
    if not is_sharded(like):
        return rows
    padded = rows.new_zeros(like.shape)
    padded[own_slices(like)] = rows
    return padded


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
        description="optimizer of all other parameters; null: AdamW with this lr and weight_decay",
    )

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The slots of Muon, and a number per row of a hidden matrix."""
        spec, slots = entry.spec, super().slots(entry)
        if is_hidden(spec):
            rows = (1 if axis in spec.fan_in else spec.size(axis) for axis in spec.axes)
            slots["second_momentum_buffer"] = tuple(rows)
        return slots
