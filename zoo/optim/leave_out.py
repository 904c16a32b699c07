"""Skipping the step of any optimizer if the gradient is not finite, without waiting for the host.

torch's fused optimizers read the attribute `found_inf`, which GradScaler sets during a step: if it is 1, they
leave weights, slots and step counts unchanged. Optimizers of zoo undo their changes block by block
(`zoo.optim.gate`). For any other optimizer, everything that its step may change is copied before the step
and restored after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.optim.gate import flagged, put_back
from zoo.optim.state import changing, tensors_in
from zoo.utils.sharded import local

FOUND_INF = "found_inf"


@contextmanager
def left_out_where(optimizer: Optimizer, diverged: Tensor | None) -> Iterator[None]:
    """Within a `with` block, a step of `optimizer` changes no weight and no slot if `diverged`.

    Counters on the host, such as the number of the step, advance all the same.

    Args:
        optimizer: any optimizer that has taken a step before. Slots that are created within the block are
            zero if `diverged`.
        diverged: 0-dim bool on the device of the parameters; None: the step is taken in any case.
    """
    if diverged is None:
        yield
        return
    with flagged(optimizer, diverged):
        if getattr(optimizer, "is_gated", False):
            yield
        elif getattr(optimizer, "_step_supports_amp_scaling", False):  # torch's mark of fused optimizers
            setattr(optimizer, FOUND_INF, diverged.float())
            try:
                yield
            finally:
                delattr(optimizer, FOUND_INF)
        else:
            with _copied(optimizer, diverged):
                yield


@contextmanager
def _copied(optimizer: Optimizer, diverged: Tensor) -> Iterator[None]:
    """Copy weights and slots, and restore them at the end of the block if `diverged`."""
    before = {path: tensor.clone() for path, tensor in _changing(optimizer, diverged.device)}
    yield
    with torch.no_grad():
        for path, tensor in _changing(optimizer, diverged.device):
            old = before[path] if path in before else torch.zeros_like(tensor)
            put_back(diverged, [tensor], [old])


def _changing(optimizer: Optimizer, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield the path and this rank's rows of every tensor on `device` that a step may change."""
    parts = changing(optimizer)
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = list(parts.pop("state").values())
    for path, tensor in tensors_in({**parts, "state": states, "weights": weights}):
        if tensor.device == device:
            yield path, local(tensor.detach())
