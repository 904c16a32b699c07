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

POLL_SECONDS = 0.1


@contextmanager
def locked(path: Path, message: str, *, shared: bool = False, timeout: float = 0.0) -> Iterator[None]:
    """Hold a lock within a `with` block.

    Args:
        path: the lock file, which is made if it does not exist; it names the process that holds the lock.
        message: the error if another process holds the lock; that process is appended.
        shared: whether other processes may hold the lock as well, if they share it too.
        timeout: seconds to wait for the lock.

    Raises:
        ZooError: another process holds the lock.
    """
    deadline = time.monotonic() + timeout
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _acquired(descriptor, shared):
            if time.monotonic() >= deadline:
                raise ZooError(f"{message} ({os.read(descriptor, 100).decode(errors='replace').strip()})")
            time.sleep(POLL_SECONDS)
        if not shared:
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _acquired(descriptor: int, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
