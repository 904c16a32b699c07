"""Skipping steps whose gradient is not finite, decided on the device without waiting for the host.

torch's fused optimizers read the attribute `found_inf`, which GradScaler sets during a step: if it is 1, they
leave weights, slots and step counts unchanged. Amos does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

ATTRIBUTE = "found_inf"


def is_gated(optimizer: Optimizer) -> bool:
    """Whether an optimizer respects `left_out_where`: by torch's mark of fused optimizers, or its own."""
    return any(getattr(optimizer, mark, False) for mark in ("_step_supports_amp_scaling", "is_gated"))


@contextmanager
def left_out_where(optimizer: Optimizer, diverged: Tensor) -> Iterator[None]:
    """Within a `with` block, `optimizer` skips its step if `diverged`, provided that it `is_gated`.

    Args:
        optimizer: any optimizer.
        diverged: 0-dim bool on the device of the parameters.
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
    """Whether the present step is skipped, 0-dim bool; None: it is taken in any case."""
    flag: Tensor | None = getattr(optimizer, ATTRIBUTE, None)
    return None if flag is None else flag > 0


@contextmanager
def kept_where(unchanged: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore some tensors at the end of a `with` block to their values at its beginning.

    Args:
        unchanged: whether to restore the tensors, 0-dim bool; None: they are not restored.
        tensors: plain tensors without gradient, which the block changes in place.
    """
    if unchanged is None:
        yield
        return
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(unchanged, old, tensor))
