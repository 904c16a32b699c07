"""The memory of a process on a CPU: what is freed is kept for the next step, in huge pages if there are any.

A training step frees all of its activations. By default glibc hands large blocks back to the operating
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
"""Allocate from the heap only, whatever the size; do not shrink it; grow it by at least 64 MiB."""

HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""The variable that makes torch ask for huge pages for tensors from 2 MiB on, read at the first one."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; all of it goes back when the process ends.

    Environment variables of glibc's allocator (``MALLOC_TRIM_THRESHOLD_`` and the like) take precedence.

    Returns:
        Whether it does; False where the C library is not glibc, or the environment says otherwise.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(min(mallopt(parameter, value) for parameter, value in LIMITS.items()))


def ask_for_huge_pages() -> None:
    """Ask for huge pages, unless the environment says otherwise; without effect once torch has allocated."""
    for name, value in HUGE_PAGES.items():
        os.environ.setdefault(name, value)
