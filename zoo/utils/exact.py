"""The precision in which norms and losses are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def exact(tensor: Tensor) -> Tensor:
    """A tensor in float32, or in float64 if it is float64; the weights of a model may be bfloat16."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
