"""Locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.utils.atomic import explained
from zoo.utils.errors import ZooError

PAUSE = 0.1  # seconds between two attempts


@contextmanager
def locked(path: Path, reason: str, *, shared: bool = False, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock.

    Args:
        path: a file, made if need be; what is in it says which process holds the lock.
        reason: what to tell if another process holds it; the process is appended.
        shared: together with others that hold it shared.
        patience: seconds to wait for it.

    Raises:
        ZooError: another process holds it.
    """
    deadline = time.monotonic() + patience
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _taken(descriptor, shared):
            if time.monotonic() >= deadline:
                raise ZooError(f"{reason} ({os.read(descriptor, 100).decode(errors='replace').strip()})")
            time.sleep(PAUSE)
        if not shared:
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
