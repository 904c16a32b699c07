"""float32, or bfloat16 where torch's autocast finds it safe."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """The context of a forward pass; weights, gradients and optimizer state are float32 either way.

    Args:
        precision: `fp32` or `bf16`.
        device: where the pass runs.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
