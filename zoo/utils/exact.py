"""The precision in which norms, scores and losses are computed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def exact(tensor: Tensor) -> Tensor:
    """A tensor in float32, or in float64 if it is float64; the weights of a model may be bfloat16."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def has_autocast(device: torch.device) -> bool:
    """Whether there is autocast on a device.

    There is none on the meta device, on which operations are counted: torch refuses to switch it off there,
    and to say whether it is on.
    """
    return device.type != "meta"


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """The context manager of matrix products on a device whose factors autocast must not round.

    Args:
        device: that of the factors; on the meta device there is nothing to switch off.
    """
    return torch.autocast(device.type, enabled=False) if has_autocast(device) else nullcontext()
