"""GPUs whose memory and peak are known: for the share of the peak that is used, and for what fits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zoo.utils.errors import ZooError

GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU.

    Attributes:
        name: the first words of the name that torch gives it.
        memory: bytes that a process finds there: the vendor's figure, less what error correction and the
            driver take.
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
    "l4": Accelerator("NVIDIA L4", 22 * GIB, 121e12),
    "l40s": Accelerator("NVIDIA L40S", 44 * GIB, 362e12),
}
"""The known kinds of GPUs, by the names that `zoo explain --device` takes."""


def accelerator(key: str) -> Accelerator:
    """A known kind of GPU.

    Args:
        key: a name of `ACCELERATORS`, in capital or small letters.

    Raises:
        ZooError: there is no such name; the message lists those that there are.
    """
    try:
        return ACCELERATORS[key.lower()]
    except KeyError:
        raise ZooError(f"device '{key}': not known; expected one of {', '.join(ACCELERATORS)}") from None


def flops_of(name: str) -> float | None:
    """The peak of a GPU in bfloat16 operations per second.

    Args:
        name: torch's name of it.

    Returns:
        The peak of the kind whose name has the most words in common; None where no kind is known.
    """
    words = re.split("[ -]", name)
    known = [a for a in ACCELERATORS.values() if a.name.split() == words[: len(a.name.split())]]
    return max(known, key=lambda a: len(a.name)).flops if known else None
