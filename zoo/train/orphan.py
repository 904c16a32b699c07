"""Stopping a rank whose launcher was killed, because nothing else would end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

POLL_SECONDS = 1.0
GRACE_SECONDS = 60.0
"""Seconds for the current step and its checkpoint, which needs all other ranks as well."""


@contextmanager
def ends_with_parent() -> Iterator[None]:
    """Ask this process to save and stop when its parent dies, and end it a minute later if it has not."""
    parent, left = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            if left.wait(POLL_SECONDS):
                return
        os.kill(os.getpid(), signal.SIGTERM)
        if not left.wait(GRACE_SECONDS):
            os._exit(1)

    thread = threading.Thread(target=watch, daemon=True, name="zoo-orphan")
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
