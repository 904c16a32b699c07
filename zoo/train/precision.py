"""The precision of the forward pass: float32, or bfloat16 with torch's autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from zoo.run.train_config import Precision


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """The context manager of a forward pass; weights, gradients and optimizer state are float32 in any case.

    Args:
        precision: `fp32` or `bf16`.
        device: the device of the forward pass.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
