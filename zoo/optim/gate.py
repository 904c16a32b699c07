"""Steps that are not taken where the gradient is not finite, decided by the device without asking the host.

torch's fused optimizers read an attribute `found_inf` for it, which its GradScaler sets for the time of a
step: where it is 1 they leave weights, slots and their counts of steps as they are. Amos does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

ATTRIBUTE = "found_inf"


def is_gated(optimizer: Optimizer) -> bool:
    """Whether an optimizer heeds `left_out_where`: by torch's mark of fused optimizers, or by its own."""
    return any(getattr(optimizer, mark, False) for mark in ("_step_supports_amp_scaling", "is_gated"))


@contextmanager
def left_out_where(optimizer: Optimizer, diverged: Tensor) -> Iterator[None]:
    """Within, `optimizer` takes no step if `diverged`; one that is not gated takes it all the same.

    Args:
        optimizer: any.
        diverged: 0-dim, bool, on the device of the parameters.
    """
    if not is_gated(optimizer):
        yield
        return
    setattr(optimizer, ATTRIBUTE, diverged.float())
    try:
        yield
    finally:
        delattr(optimizer, ATTRIBUTE)


def left_out(optimizer: Optimizer) -> Tensor | None:
    """Whether the present step is left out, 0-dim, bool; None: it is taken in any case."""
    flag: Tensor | None = getattr(optimizer, ATTRIBUTE, None)
    return None if flag is None else flag > 0


@contextmanager
def kept_where(unchanged: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put some tensors back at the end to what they were at the beginning.

    Args:
        unchanged: whether they are put back, 0-dim, bool; None: they are not.
        tensors: plain, not trained, changed in place meanwhile.
    """
    if unchanged is None:
        yield
        return
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(unchanged, old, tensor))
