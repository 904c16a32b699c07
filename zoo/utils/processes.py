"""Processes of this machine."""

from __future__ import annotations

import os


def is_running(process: int) -> bool:
    """Whether a process of this id runs on this machine; on Windows, where asking would end it, True."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
