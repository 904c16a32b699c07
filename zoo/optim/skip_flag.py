"""Skipping steps whose gradient is not finite, decided on the device without waiting for the host.

An optimizer whose class says `handles_skip` asks here whether its present step is skipped, and undoes its
changes. `zoo.optim.skip` does this for all other optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

_SKIP_FLAGS: WeakKeyDictionary[Optimizer, Tensor] = WeakKeyDictionary()
"""By optimizer, during a step that may be skipped: the flag that says whether it is skipped."""


def skip_flag(optimizer: Optimizer) -> Tensor | None:
    """Whether the present step is skipped, 0-dim bool on the device; None: it is taken in any case."""
    return _SKIP_FLAGS.get(optimizer)


@contextmanager
def with_skip_flag(optimizer: Optimizer, skip: Tensor) -> Iterator[None]:
    """Within a `with` block, `skip_flag` returns this flag."""
    _SKIP_FLAGS[optimizer] = skip
    try:
        yield
    finally:
        del _SKIP_FLAGS[optimizer]


@contextmanager
def restored_if(skip: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore some tensors at the end of a `with` block to their values at its beginning.

    Args:
        skip: whether to restore the tensors, 0-dim bool; None: they are not restored.
        tensors: plain tensors without gradient, which the block changes in place.
    """
    if skip is None:
        yield
        return
    before = [tensor.clone() for tensor in tensors]
    yield
    restore_if(skip, tensors, before)


def restore_if(skip: Tensor, tensors: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Restore the earlier values of tensors in place if `skip`."""
    for tensor, old in zip(tensors, before, strict=True):
        torch.where(skip, old, tensor, out=tensor)
