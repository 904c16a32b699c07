"""Skipping steps whose gradient is not finite, decided on the device without waiting for the host.

An optimizer whose class says `is_gated` asks here whether its present step is skipped, and undoes its
changes. `zoo.optim.leave_out` does this for all other optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

_LEFT_OUT: WeakKeyDictionary[Optimizer, Tensor] = WeakKeyDictionary()
"""By optimizer, during a step that may be skipped: the flag that says whether it is skipped."""


def left_out(optimizer: Optimizer) -> Tensor | None:
    """Whether the present step is skipped, 0-dim bool on the device; None: it is taken in any case."""
    return _LEFT_OUT.get(optimizer)


@contextmanager
def flagged(optimizer: Optimizer, unless: Tensor) -> Iterator[None]:
    """Within a `with` block, `left_out` returns this flag."""
    _LEFT_OUT[optimizer] = unless
    try:
        yield
    finally:
        del _LEFT_OUT[optimizer]


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
    put_back(unchanged, tensors, before)


def put_back(unchanged: Tensor, tensors: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Restore the earlier values of tensors in place if `unchanged`."""
    for tensor, old in zip(tensors, before, strict=True):
        torch.where(unchanged, old, tensor, out=tensor)
