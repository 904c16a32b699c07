"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.utils.weak import WeakTensorKeyDictionary

from zoo.config.registry import OPTIMIZERS
from zoo.kernels.stacks import alike, stack
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, decayed_groups
from zoo.optim.blocks import blocks
from zoo.optim.moments import advance_moments
from zoo.optim.optimizer import ZooOptimizer, due, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import COUNT, DECAY_OR_NONE, NOT_NEGATIVE, TWO_DECAYS
from zoo.optim.skip_flag import skip_flag
from zoo.optim.slots import slot_dtype
from zoo.optim.stacks import changed
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import is_sharded

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.spec import ParamSpec

LEAST_EIGENVALUE = 1e-30

UNBEGUN = -1.0
"""The slot `step` of a parameter that has had no gradient yet: its first one makes the bases, in step 0."""

WHOLE_SIDES = "the bases are of whole sides"
"""Why sharded parameters are refused."""


class SOAP(ZooOptimizer):
    r"""SOAP (Vyas et al., arXiv 2409.11321, Algorithm 3), for matrices of any number of dimensions.

    For a matrix with gradient G, where L and R are running averages of G G^T and G^T G with eigenbases Q_L
    and Q_R::

        G'     = Q_L^T G Q_R
        m, v   <- averages of G' and G'^2
        W      <- W - lr sqrt(1 - beta2^t) / (1 - beta1^t) Q_L (m / (sqrt(v) + eps)) Q_R^T
        W      <- W - lr weight_decay W

    The first step only initialises L and R and computes their bases by eigh; every `precondition_frequency`
    steps the bases are updated by a QR step. Vectors and sides longer than `max_precond_dim` get no basis.

    The authors transform m to the parameter's axes and back after every step. Q is orthogonal only up to
    float32 rounding, so that this multiplies m by Q_L^T Q_L and Q_R^T Q_R. Here these two products are kept
    in memory and multiplied; they take as much memory as the bases.

    If the first gradient does not have full rank, the basis of its null space is arbitrary, and the run
    depends on it. Parameters may not be sharded.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": TWO_DECAYS,
        "shampoo_beta": DECAY_OR_NONE,
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "precondition_frequency": COUNT,
        "max_precond_dim": COUNT,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10_000,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate.
            betas: decays of the two averages.
            shampoo_beta: decay of L and R; None: the decay of the second moment.
            eps: added to the root of the second moment.
            weight_decay: decoupled weight decay, times lr.
            precondition_frequency: steps between updates of the bases.
            max_precond_dim: the longest side that gets a basis.

        Raises:
            ConfigError: A value is out of range, or a parameter is sharded.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "shampoo_beta": shampoo_beta,
            "eps": eps,
            "weight_decay": weight_decay,
            "precondition_frequency": precondition_frequency,
            "max_precond_dim": max_precond_dim,
        }
        super().__init__(params, defaults)

    def check(self, group: ParamGroup, place: str) -> None:
        """Check a group, whose parameters may not be sharded."""
        super().check(group, place)
        if any(map(is_sharded, group["params"])):
            raise ConfigError(f"{place}: sharded parameters; expected whole ones, since {WHOLE_SIDES}")

    def slots(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """Two moments, and for each side that has a basis the average and the basis."""
        dtype, device = slot_dtype(parameter), parameter.device
        slots = {"step": torch.full((), UNBEGUN, dtype=torch.float32)}
        for name, shape in state_shapes(tuple(parameter.shape), group["max_precond_dim"]).items():
            slots[name] = torch.zeros(shape, dtype=dtype, device=device)
        return slots

    def update(self) -> None:
        """Move every parameter that has a gradient, together with those of its shape on a GPU."""
        for group in self.param_groups:
            parameters = due(group)
            counts = self.counted(parameters, group)
            # A side may be longer than the others together: the largest tensor says whether to copy.
            largest = [max(p, *self.state[p].values(), key=Tensor.numel) for p in parameters]
            keys = [(t, p.shape, p.dtype) for t, p in zip(counts, parameters, strict=True)]
            for members in alike(largest, keys):
                self._step([parameters[i] for i in members], group, counts[members[0]])

    def _step(self, parameters: Sequence[Tensor], group: ParamGroup, t: int) -> None:
        """Take step `t` with parameters of one shape."""
        skip, g = skip_flag(self), stack(gradients(parameters)).to(slot_dtype(parameters[0]))
        if skip is not None:
            g = torch.where(skip, 0, g)  # the factorisations refuse what is not finite
        if t == 0:  # of a skipped step: of a zero gradient, whose bases are the axes
            self._begin(parameters, g, group)
        else:
            self._move(parameters, g, group, t, skip)

    def _begin(self, parameters: Sequence[Tensor], g: Tensor, group: ParamGroup) -> None:
        """Initialise L and R and their bases."""
        for side in preconditioned(parameters[0].shape, group["max_precond_dim"]):
            columns = self.held(parameters, f"GG{side}"), self.held(parameters, f"Q{side}")
            with changed(None, *columns) as (average, basis):
                follow(g, average, side, decay_of_bases(group))
                for vectors, matrix in zip(basis, average, strict=True):
                    vectors.copy_(eigenbasis(matrix))

    def _move(
        self, parameters: Sequence[Tensor], g: Tensor, group: ParamGroup, t: int, skip: Tensor | None
    ) -> None:
        sides = preconditioned(parameters[0].shape, group["max_precond_dim"])
        slots = [
            self.held(parameters, slot) for slot in ("exp_avg", "exp_avg_sq", *(f"GG{d}" for d in sides))
        ]
        turning = [self.held(parameters, f"Q{side}") for side in sides]
        bases = dict(zip(sides, map(stack, turning), strict=True))
        with changed(skip, local_rows(parameters), *slots) as (theta, m, v, *averages):
            step = adam_direction(m, v, along_sides(g, bases).contiguous(), group)
            move_weights(theta, along_sides(step, transposed(bases)), group, t)
            for side, average in zip(sides, averages, strict=True):
                follow(g, average, side, decay_of_bases(group))
            if t % group["precondition_frequency"] == 0:
                with changed(skip, *turning) as turned:
                    turn_bases(m, v, averages, dict(zip(sides, turned, strict=True)))
            else:
                m.copy_(along_sides(m, dict(zip(sides, map(grams, turning), strict=True))))


def adam_direction(m: Tensor, v: Tensor, g: Tensor, group: ParamGroup) -> Tensor:
    """m / (sqrt(v) + eps), after a gradient was added to both moments.

    Args:
        m: first moments of the members of a stack, (members, *shape), updated in place.
        v: second moments, of the same shape, updated in place.
        g: gradients, of the same shape, in the axes of the bases.
        group: the parameter group, with `betas` and `eps`.
    """
    direction = torch.empty_like(g)
    for first, second, new, out in blocks([m], [v], [g], [direction]):
        advance_moments(first, second, new, group["betas"])
        out.copy_(first).div_(second.sqrt().add_(group["eps"]))
    return direction


def move_weights(theta: Tensor, direction: Tensor, group: ParamGroup, t: int) -> None:
    """Move parameters in step `t`, from 1, and decay them."""
    (beta1, beta2), lr = group["betas"], float(group["lr"])
    rate = -lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    for weights, update in blocks([theta], [direction]):
        weights.add_(update.type_as(weights), alpha=rate)
        if group["weight_decay"]:  # as a difference: 1 - lr weight_decay would be rounded
            weights.add_(weights, alpha=-lr * group["weight_decay"])


def decay_of_bases(group: ParamGroup) -> float:
    """The decay of L and R in a group: `shampoo_beta`, or the decay of the second moment."""
    beta: float | None = group["shampoo_beta"]
    return float(group["betas"][1]) if beta is None else beta


def follow(g: Tensor, average: Tensor, side: int, beta: float) -> None:
    """Add gradients to the running averages of the Gram matrices (G G^T or G^T G) of a side.

    Args:
        g: gradients of the members of a stack, (members, *shape).
        average: (members, n, n), n being the length of the side; updated in place.
        side: the dimension of a member.
        beta: decay of the averages.
    """
    slices = g.movedim(side + 1, 1).flatten(2)
    add_product(average, slices, slices.mT, beta)


def turn_bases(m: Tensor, v: Tensor, averages: Sequence[Tensor], bases: Mapping[int, Tensor]) -> None:
    """Update the bases by a QR step, sorted by eigenvalues; the first moment moves to the new bases.

    Args:
        m: first moments of the members of a stack, (members, *shape), updated in place.
        v: second moments, of the same shape, whose entries are reordered in place.
        averages: the averages of the Gram matrices of each side, (members, n, n).
        bases: the bases by side, (members, n, n), updated in place.
    """
    moment = along_sides(m, transposed(bases))
    for (side, basis), average in zip(bases.items(), averages, strict=True):
        turned = product(average, basis)
        order = (basis * turned).sum(1).argsort(descending=True)
        v.copy_(reordered(v, side, order))
        basis.copy_(torch.linalg.qr(reordered(turned, 1, order))[0])
    m.copy_(along_sides(moment, bases))


def reordered(stacked: Tensor, side: int, order: Tensor) -> Tensor:
    """The members of a stack, with the entries along a side of each in an order of its own."""
    shape = [len(stacked), *(-1 if d == side else 1 for d in range(stacked.dim() - 1))]
    return stacked.gather(side + 1, order.view(shape).expand_as(stacked))


class Gram(NamedTuple):
    """Q^T Q of a basis Q, with the version counter of the tensor Q at that time."""

    version: int
    product: Tensor


# They are no slots, because they follow from the bases, also from those of a checkpoint.
_GRAMS: MutableMapping[Tensor, Gram] = WeakTensorKeyDictionary()


def grams(bases: Sequence[Tensor]) -> Tensor:
    """The stack of Q^T Q of some bases Q, which is computed again if a basis has changed since."""
    kept = [_GRAMS.get(basis) for basis in bases]
    if any(gram is None or gram.version != basis._version for gram, basis in zip(kept, bases, strict=True)):
        stacked = stack(bases)
        for basis, gram in zip(bases, product(stacked.mT, stacked), strict=True):
            _GRAMS[basis] = Gram(basis._version, gram)
    return stack([_GRAMS[basis].product for basis in bases])


def preconditioned(shape: Sequence[int], max_dim: int) -> list[int]:
    """The dimensions that get a basis: none of a vector, and none longer than `max_dim`."""
    return [d for d, size in enumerate(shape) if size <= max_dim] if len(shape) > 1 else []


def state_shapes(shape: tuple[int, ...], max_dim: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that is kept for a parameter."""
    shapes = {"exp_avg": shape, "exp_avg_sq": shape}
    for side in preconditioned(shape, max_dim):
        shapes |= {f"GG{side}": (shape[side], shape[side]), f"Q{side}": (shape[side], shape[side])}
    return shapes


def along_sides(stacked: Tensor, matrices: Mapping[int, Tensor]) -> Tensor:
    """The products of a stack with matrices along each given side, which counts the rows of the matrices.

    Args:
        stacked: (members, *shape).
        matrices: matrices by side, (members, n, n), n being the length of the side.

    Returns:
        (members, *shape).
    """
    for side, matrix in matrices.items():
        if side == 0:
            stacked = product(matrix.mT, stacked.flatten(2)).view(stacked.shape)
        else:
            stacked = product(stacked.movedim(side + 1, -1), matrix).movedim(-1, side + 1)
    return stacked


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of each pair of members of two stacks, (n, ..., k) and (n, k, l).

    Two single members are multiplied as such, here and in `add_product`, because batched products round
    differently.
    """
    if len(a) == 1:
        return (a[0] @ b[0])[None]
    return (a.flatten(1, -2) @ b).view(*a.shape[:-1], b.shape[-1])


def add_product(average: Tensor, a: Tensor, b: Tensor, beta: float) -> None:
    """beta average + (1 - beta) a b, for stacks of matrices, in place."""
    if len(average) == 1:
        average[0].addmm_(a[0], b[0], beta=beta, alpha=1 - beta)
    else:
        average.baddbmm_(a, b, beta=beta, alpha=1 - beta)


def transposed(bases: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The transposed bases, which lead back to the parameter's axes."""
    return {side: basis.mT for side, basis in bases.items()}


def eigenbasis(average: Tensor) -> Tensor:
    """Eigenvectors of a symmetric matrix as columns, those of the largest eigenvalues first."""
    jitter = LEAST_EIGENVALUE * torch.eye(len(average), dtype=average.dtype, device=average.device)
    symmetric = average + jitter
    try:
        vectors: Tensor = torch.linalg.eigh(symmetric)[1]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # close eigenvalues may keep it from converging
        vectors = torch.linalg.eigh(symmetric.double())[1].to(average.dtype)
    return vectors.flip(1)


@OPTIMIZERS.register
class SOAPConfig(OptimizerConfig):
    """SOAP: Adam in the eigenbasis of Shampoo's preconditioner (arXiv 2409.11321)."""

    method_family: ClassVar[str] = "preconditioned"
    method_source: ClassVar[str] = "arXiv 2409.11321"

    type: Literal["soap"] = "soap"
    betas: tuple[Decay, Decay] = Field((0.95, 0.95), description="decays of the running averages")
    shampoo_beta: Decay | None = Field(None, description="decay of the preconditioner; null: the second beta")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay of matrices, times lr")
    precondition_frequency: int = Field(10, ge=1, description="steps between updates of the bases")
    max_precond_dim: int = Field(
        10_000, ge=1, description="the longest side that gets a basis; a vocabulary is usually longer"
    )

    @property
    def waits_for(self) -> str:
        """The factorisations, whose success torch checks on the host."""
        return "factorisations"

    def update_flops(self, spec: ParamSpec) -> float:
        """The operations of all products with the bases, with 8/3 n^3 for a QR step of n rows."""
        shape, often = spec.shape, 1 / self.precondition_frequency
        kept_products = 2 if often < 1 else 0  # Q^T Q, computed once for all steps with the same basis
        return sum(
            # Gradient and step change their axes, the average of Gram matrices and the first moment follow.
            # A turn moves the moment twice, and has the products of two square matrices.
            math.prod(shape) * n * (8 + 2 * often) + often * n**3 * (2 + 8 / 3 + kept_products)
            for n in (shape[side] for side in preconditioned(shape, self.max_precond_dim))
        )

    def build(self, entries: Sequence[Entry]) -> SOAP:
        """The optimizer; its groups are the matrices and the vectors.

        Raises:
            ConfigError: Parameters are sharded.
        """
        groups = decayed_groups(entries, self.lr, self.weight_decay)
        return SOAP(groups, **self.model_dump(exclude={"type", "weight_decay"}))

    def not_sharded(self) -> str:
        """The reason, for a basis needs all rows."""
        return WHOLE_SIDES

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Two moments, and for each side that has a basis the average and the basis."""
        return state_shapes(entry.spec.shape, self.max_precond_dim)
