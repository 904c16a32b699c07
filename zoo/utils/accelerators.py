"""The memory and the peak speed of known GPUs, for utilisation and forecasts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zoo.utils.errors import ZooError

GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """The memory and the speed of a kind of GPU.

    Attributes:
        name: the first words of torch's name of the GPU.
        memory: bytes that a process can use: the vendor's figure less the memory of error correction and the
            driver.
        flops: dense bfloat16 operations per second, from the vendor's data sheet.
    """

    name: str
    memory: int
    flops: float


ACCELERATORS = {
    "a100-40gb": Accelerator("NVIDIA A100", 39 * GIB, 312e12),
    "a100-80gb": Accelerator("NVIDIA A100", 79 * GIB, 312e12),
    "h100": Accelerator("NVIDIA H100 80GB HBM3", 79 * GIB, 989e12),
    "h100-nvl": Accelerator("NVIDIA H100 NVL", 93 * GIB, 835e12),
    "h100-pcie": Accelerator("NVIDIA H100 PCIe", 79 * GIB, 756e12),
    "h200": Accelerator("NVIDIA H200", 139 * GIB, 989e12),
    "h200-nvl": Accelerator("NVIDIA H200 NVL", 139 * GIB, 835e12),
    "l4": Accelerator("NVIDIA L4", 22 * GIB, 121e12),
    "l40s": Accelerator("NVIDIA L40S", 44 * GIB, 362e12),
}
"""The known kinds of GPUs, by the names that `zoo explain --device` takes."""


def accelerator(key: str) -> Accelerator:
    """A known kind of GPU.

    Args:
        key: a name in `ACCELERATORS`, in upper or lower case.

    Raises:
        ZooError: There is no such name; the message lists all names.
    """
    try:
        return ACCELERATORS[key.lower()]
    except KeyError:
        raise ZooError(f"device '{key}': not known; expected one of {', '.join(ACCELERATORS)}") from None


def flops_of(name: str) -> float | None:
    """The peak of a GPU in bfloat16 operations per second.

    Args:
        name: torch's name of the GPU.

    Returns:
        The peak of the kind whose name has the most words in common; None if no kind matches, or for a slice
        of a GPU (MIG), whose peak is a part of the GPU's.
    """
    words = re.split("[ -]", name)
    if "MIG" in words:
        return None  # a slice of a GPU
    known = [a for a in ACCELERATORS.values() if a.name.split() == words[: len(a.name.split())]]
    return max(known, key=lambda a: len(a.name)).flops if known else None
