"""Skipping the step of any optimizer if the gradient is not finite, without waiting for the host.

torch's fused optimizers read the attribute `found_inf`, which GradScaler sets during a step: if it is 1, they
leave weights, slots and step counts unchanged. Optimizers of zoo undo their changes block by block
(`zoo.optim.skip_flag`). For any other optimizer, everything that its step may change is copied before the
step and restored after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.optim.skip_flag import restore_if, with_skip_flag
from zoo.optim.state import changing, tensors_in
from zoo.utils.sharded import local

FOUND_INF = "found_inf"


@contextmanager
def skipped_if(optimizer: Optimizer, skip: Tensor | None) -> Iterator[None]:
    """Within a `with` block, a step of `optimizer` changes no weight and no slot if `skip`.

    Counters on the host, such as the number of the step, advance all the same.

    Args:
        optimizer: any optimizer that has taken a step before. Slots that are created within the block are
            zero if `skip`.
        skip: 0-dim bool on the device of the parameters; None: the step is taken in any case.
    """
    if skip is None:
        yield
        return
    with with_skip_flag(optimizer, skip):
        if getattr(optimizer, "handles_skip", False):
            yield
        elif getattr(optimizer, "_step_supports_amp_scaling", False):  # torch's mark of fused optimizers
            setattr(optimizer, FOUND_INF, skip.float())
            try:
                yield
            finally:
                delattr(optimizer, FOUND_INF)
        else:
            with _copied(optimizer, skip):
                yield


@contextmanager
def _copied(optimizer: Optimizer, skip: Tensor) -> Iterator[None]:
    """Copy weights and slots, and restore them at the end of the block if `skip`."""
    before = {path: tensor.clone() for path, tensor in _changing(optimizer, skip.device)}
    yield
    with torch.no_grad():
        for path, tensor in _changing(optimizer, skip.device):
            old = before[path] if path in before else torch.zeros_like(tensor)
            restore_if(skip, tensor, old)


def _changing(optimizer: Optimizer, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield the path and this rank's rows of every tensor on `device` that a step may change."""
    parts = changing(optimizer)
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = list(parts.pop("state").values())
    for path, tensor in tensors_in({**parts, "state": states, "weights": weights}):
        if tensor.device == device:
            yield path, local(tensor.detach())
