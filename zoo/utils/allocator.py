"""The memory allocator of a CPU process: freed memory is kept for the next step, in huge pages if possible.

A training step frees all of its activations. By default glibc returns large blocks to the operating
system, and the next step faults every page in again: tens of thousands of page faults, and up to a sixth of
the time.
"""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Parameters of glibc's mallopt(3)."""

LIMITS = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 64 * 2**20}
"""Settings: allocate all sizes from the heap, never shrink it, and grow it by at least 64 MiB."""

HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""The variable by which torch requests huge pages for tensors from 2 MiB on; it is read once."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees until it ends.

    Environment variables of glibc's allocator (``MALLOC_TRIM_THRESHOLD_`` and the like) take precedence.

    Returns:
        Whether the process does so; False if the C library is not glibc, or if the environment decides
        otherwise.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(min(mallopt(parameter, value) for parameter, value in LIMITS.items()))


def ask_for_huge_pages() -> None:
    """Request huge pages, unless the environment decides otherwise; no effect once torch has allocated."""
    for name, value in HUGE_PAGES.items():
        os.environ.setdefault(name, value)
