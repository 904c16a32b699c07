"""Numbers on their way from a device to the host, which computes something else meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


def arrives_alone(device: torch.device) -> bool:
    """Whether numbers of a device can be copied to the host while both of them work on."""
    return device.type == "cuda"


class Arriving:
    """A few numbers that were, or will be, computed on a device.

    On a GPU the copy begins when this is created, behind what was asked of the GPU before. Reading waits for
    that work only, and not for what was asked of it later.
    """

    def __init__(self, numbers: Tensor) -> None:
        """Begin the copy.

        Args:
            numbers: (n,), on any device; not to be written to before they are read.
        """
        self._numbers, self._copied = numbers, None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
            self._copied.record()

    def read(self) -> list[float]:
        """The numbers; waits for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._numbers.tolist()
