"""Skipping steps whose gradient is not finite, decided on the device without waiting for the host.

An optimizer whose class says `handles_skip` asks here whether its present step is skipped, and undoes its
changes. `zoo.optim.skip` does this for all other optimizers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.kernels.foreach import Many
from zoo.kernels.stacks import is_alone

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
    groups = _together(tensors)
    before = [_joined(group) for group in groups]
    yield
    for group, old in zip(groups, before, strict=True):
        if len(group) == 1:
            restore_if(skip, group[0], old.view_as(group[0]))
            continue
        kept = torch.split(torch.where(skip, old, _joined(group)), [tensor.numel() for tensor in group])
        Many(group).copy_(Many([part.view_as(tensor) for part, tensor in zip(kept, group, strict=True)]))


def restore_if(skip: Tensor, tensor: Tensor, before: Tensor) -> None:
    """Restore the earlier values of a tensor in place if `skip`."""
    torch.where(skip, before, tensor, out=tensor)


def _together(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Divide tensors into lists that are copied at once, see `is_alone`."""
    together: dict[Hashable, list[Tensor]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        together[i if is_alone(tensor) else (tensor.dtype, tensor.device)].append(tensor)
    return list(together.values())


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of the entries of some tensors, (entries,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
