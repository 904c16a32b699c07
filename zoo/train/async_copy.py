"""Numbers that are copied from a device to the host while both continue to compute."""

from __future__ import annotations

import torch
from torch import Tensor


def can_copy_async(device: torch.device) -> bool:
    """Whether numbers can be copied from the device to the host asynchronously."""
    return device.type == "cuda"


class AsyncHostCopy:
    """A few numbers that a device has computed or will compute.

    On a GPU the copy is queued when the object is created. Reading waits for the work that was queued before
    it, and not for work that was queued later.
    """

    def __init__(self, numbers: Tensor) -> None:
        """Begin the copy.

        Args:
            numbers: (n,), on any device; must not be overwritten before they are read.
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
