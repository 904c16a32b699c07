"""Hyperball: every matrix keeps its initial norm under any optimizer (arXiv 2606.16899).

With u the optimizer's update without weight decay, and R the Frobenius norm of the initial W::

    W' = W - lr R u / |u|
    W  <- R W' / |W'|

Without a tangent projection, the matrix turns by about lr radians in a step. AdamH, MuonH, LionH and AmosH
are this rule with AdamW, Muon, Lion and Amos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import MethodType
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from zoo.optim.blocks import blocks
from zoo.optim.optimizer import local_rows
from zoo.optim.sharding import complete, totals
from zoo.optim.slots import restore_precision, slot_dtype
from zoo.spec import Module
from zoo.utils.errors import ConfigError
from zoo.utils.printable import first_few
from zoo.utils.sharded import local
from zoo.utils.untyped import Passed

RADIUS = "radius"
"""The slot that holds R: 0-dim, in the precision of the other slots."""

Named = Iterator[tuple[str, Tensor]]

_KEPT: WeakKeyDictionary[Optimizer, list[Callable[[], Named]]] = WeakKeyDictionary()
"""For every optimizer that keeps norms, functions that yield the current matrices."""


def starts_at_zero(names: Sequence[str]) -> str:
    """The error message about matrices of zeros."""
    return (
        f"constraint: hyperball keeps the norm of {first_few(names)} at zero, where nothing could ever be "
        "learned; expected matrices that do not start at zero"
    )


def fixed_norms(model: nn.Module) -> Named:
    """The trained parameters whose norm is kept: name and current tensor."""
    for path, module in model.named_modules():
        for name, spec in module.specs.items() if isinstance(module, Module) else ():
            if spec.keeps_norm and not spec.frozen:
                yield f"{path}.{name}" if path else name, module.get_parameter(name)


def keep_norms(optimizer: Optimizer, matrices: Callable[[], Named]) -> None:
    """Have every step of an optimizer follow the rule of this module.

    During the optimizer's own step the matrices are zero, so that their values after it are its update in
    full precision, without any weight decay. A step that raises puts the weights back. This implementation is
    our choice; the formula is the authors'.

    Args:
        optimizer: any optimizer whose displacement does not depend on the weights.
        matrices: a function that yields the current matrices, which the optimizer trains.

    Raises:
        ConfigError: A matrix is zero.
    """
    now = [(name, tensor) for name, tensor in matrices() if not tensor.is_meta]
    norms = frobenius([tensor.detach() for _, tensor in now])
    if zero := [name for (name, _), norm in zip(now, norms, strict=True) if not norm]:
        raise ConfigError(starts_at_zero(zero))
    _NormKeeper(optimizer, matrices).register()
    _KEPT.setdefault(optimizer, []).append(matrices)


class _NormKeeper:
    """The hooks by which the steps of an optimizer follow the rule of this module, see `keep_norms`."""

    def __init__(self, optimizer: Optimizer, matrices: Callable[[], Named]) -> None:
        self._optimizer, self._matrices = optimizer, matrices
        # During a step: the matrices that take it, each with this rank's entries from before the step.
        self._before: list[tuple[Tensor, Tensor]] = []
        self._loaded: list[StateDict] = []

    def register(self) -> None:
        """Attach the hooks to the optimizer, and have a step that raises put the weights back."""
        optimizer, step = self._optimizer, self._optimizer.step

        @wraps(step)
        def safe_step(_: Optimizer, *args: Passed, **kwargs: Passed) -> float | None:
            try:
                return step(*args, **kwargs)
            finally:
                self._put_back()

        optimizer.step = MethodType(safe_step, optimizer)  # type: ignore[method-assign]  # hooks see no error
        optimizer.register_step_pre_hook(self._set_to_zero)
        optimizer.register_step_post_hook(self._turn)
        optimizer.register_load_state_dict_pre_hook(lambda _, state_dict: self._loaded.append(state_dict))
        optimizer.register_load_state_dict_post_hook(self._restore_precision)

    @torch.no_grad()
    def _set_to_zero(self, _: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Before a step: keep the matrices that take it, and set them to zero."""
        if any((*args[1:], *kwargs.values())):  # args[0] is the optimizer
            raise ConfigError("hyperball: a step with a closure, which would see the weights at zero")
        for _name, matrix in self._matrices():
            if matrix.grad is not None:
                self._before.append((matrix, local(matrix.detach()).clone()))
                local(matrix.detach()).zero_()

    @torch.no_grad()
    def _turn(self, *_: object) -> None:
        """After a step, when each matrix holds its update u: set it to R W' / |W'|."""
        tensors = [matrix for matrix, _ in self._before]
        exact = [old.to(slot_dtype(old)) for _, old in self._before]
        radii, rates = self._radii(tensors, exact), self._rates()
        sizes = frobenius([matrix.detach() for matrix in tensors])
        # An update of zero, before SOAP's first step for instance, does not move the matrix.
        scales = [
            torch.where(size > 0, rates[matrix] * radius / size, 0)
            for matrix, size, radius in zip(tensors, sizes, radii, strict=True)
        ]
        squares = totals(tensors)
        for old, update, scale, square in blocks(exact, local_rows(tensors), scales, squares):
            old.addcmul_(update.type_as(old), scale, value=1)
            square.add_(old.sum_of_squares())
        complete(squares, tensors)
        factors = [
            torch.where(size > 0, radius / square.sqrt(), 1)
            for size, radius, square in zip(sizes, radii, squares, strict=True)
        ]
        for theta, moved, factor in blocks(local_rows(tensors), exact, factors):
            theta.copy_(moved.mul_(factor))
        self._before.clear()

    def _rates(self) -> dict[Tensor, float]:
        """The learning rate of each parameter of the optimizer."""
        groups = self._optimizer.param_groups
        return {parameter: float(group["lr"]) for group in groups for parameter in group["params"]}

    def _radii(self, matrices: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
        """R of each matrix, 0-dim; in the first step, the norm of this rank's `values` from before it."""
        state = self._optimizer.state
        if not all(RADIUS in state[matrix] for matrix in matrices):
            for matrix, norm in zip(matrices, frobenius(matrices, values), strict=True):
                state[matrix].setdefault(RADIUS, norm)
        return [state[matrix][RADIUS] for matrix in matrices]

    def _put_back(self) -> None:
        """Give the matrices the values from before a step that raised; after a whole step none is kept."""
        for matrix, old in self._before:
            local(matrix.detach()).copy_(old)
        self._before.clear()

    def _restore_precision(self, _: Optimizer) -> None:
        """After a `state_dict` is loaded: undo torch's cast of the radii to the dtype of the matrices."""
        restore_precision(self._optimizer, self._loaded.pop(), lambda slot: slot == RADIUS)


def frobenius(matrices: Sequence[Tensor], values: Sequence[Tensor] | None = None) -> list[Tensor]:
    """The norm of every matrix over all ranks, 0-dim each, in float32 or float64.

    Args:
        matrices: the matrices, whole or sharded.
        values: this rank's entries to take instead; None: the entries of the matrices.
    """
    entries = [local(matrix) for matrix in matrices] if values is None else values
    squares = totals(matrices)
    for value, square in blocks(entries, squares):
        square.add_(value.type_as(square).sum_of_squares())
    complete(squares, matrices)
    return [square.sqrt() for square in squares]


def radius_slot(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The slot of a matrix whose norm an optimizer keeps, before the first step; {} for other parameters."""
    kept = (tensor for matrices in _KEPT.get(optimizer, ()) for _, tensor in matrices())
    if not any(tensor is parameter for tensor in kept):
        return {}
    return {RADIUS: frobenius([parameter.detach()])[0]}
