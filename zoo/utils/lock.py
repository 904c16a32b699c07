"""Locks that end with the process that holds them, however it ends, also on network file systems.

The kernel's record locks (POSIX) exclude other processes, and those of other hosts if the network file system
supports it. For file systems that do not, the lock file names its holder, which touches the file every few
seconds as long as it lives.
"""

from __future__ import annotations

import _thread
import errno
import os
import platform
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from zoo.utils.atomic import explained
from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.processes import is_running

POLL_SECONDS = 0.1
BEAT_SECONDS = 10.0
STALE_SECONDS = 4 * BEAT_SECONDS
"""Seconds after which a holder on another host that has not touched the file counts as dead."""
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)  # Windows lacks it
BUSY = (errno.EAGAIN, errno.EACCES)
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_held: set[Path] = set()
"""The locks of this process, which record locks do not exclude from each other."""


@contextmanager
def locked(path: Path, message: str, *, shared: bool = False, timeout: float = 0.0) -> Iterator[None]:
    """Hold a lock within a `with` block.

    Args:
        path: the lock file; it and its folder are created if necessary. While one process holds the lock, the
            file names it.
        message: the error message if another process holds the lock; the process is appended.
        shared: whether other processes that also share the lock may hold it at the same time.
        timeout: seconds to wait for the lock.

    Raises:
        ZooError: Another process holds the lock.
        CheckpointError: The file cannot be written.
    """
    deadline = time.monotonic() + timeout
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    path = _absolute(path)
    while isinstance(lock := _acquire(path, shared), str):
        if time.monotonic() >= deadline:
            raise ZooError(f"{message} ({lock})")
        time.sleep(POLL_SECONDS)
    with ExitStack() as stack:
        stack.callback(os.close, lock)
        if not shared:
            _held.add(path)
            stack.callback(_held.discard, path)
            stack.callback(_discard, path, lock)
            stack.enter_context(_beating(path))
        yield


def holder(path: Path) -> str | None:
    """The process that holds a lock, in words; None: no process holds it, or the file does not name it.

    Raises:
        CheckpointError: The file is no lock file.
    """
    path = _absolute(path)
    if path in _held:
        return _named(os.getpid(), platform.node())
    try:
        descriptor = os.open(path, FLAGS)
    except OSError:
        return None
    try:
        return _refused(descriptor, path, _read(descriptor, path), shared=True)
    finally:
        os.close(descriptor)


def _acquire(path: Path, shared: bool) -> int | str:
    """Try to take a lock once; return the descriptor that holds it, or a description of its holder."""
    if path in _held:
        return _named(os.getpid(), platform.node())
    with explained(path):
        descriptor = os.open(path, FLAGS | os.O_CREAT, 0o644)
    try:
        named = _read(descriptor, path)
        if (busy := _refused(descriptor, path, named, shared)) is None:
            if not shared:
                _sign(path, descriptor)
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return busy


def _absolute(path: Path) -> Path:
    """The path of a lock, the same for all processes; a link at its end is not followed."""
    return path.parent.resolve() / path.name


def _read(descriptor: int, path: Path) -> str:
    """The holder that an open lock file names.

    Raises:
        CheckpointError: The lock file is no regular file; reading a pipe would not return.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise CheckpointError(f"{path}: is no regular file; expected a lock file of zoo, or nothing")
    return os.read(descriptor, 200).decode(errors="replace").strip()


def _refused(descriptor: int, path: Path, named: str, shared: bool) -> str | None:
    """Lock an open file; return a description of its holder, or None if this process now has the lock."""
    supported = True
    try:
        _lock(descriptor, shared)
    except OSError as error:
        if error.errno in BUSY:
            return named or "another process"
        if error.errno not in UNSUPPORTED:
            raise
        supported = False
    with suppress(FileNotFoundError):
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return named if _is_alive(path, named, supported) else None
    return "another process, which is about to end"


def _lock(descriptor: int, shared: bool) -> None:
    """Take the kernel's record lock on an open file.

    Raises:
        OSError: Another process has the lock (`BUSY`), or locks are not supported (`UNSUPPORTED`).
    """
    try:
        import fcntl  # missing on Windows, where the name in the file and the holder's beats decide
    except ImportError as error:
        raise OSError(errno.ENOSYS, "no record locks on this system") from error
    fcntl.lockf(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _sign(path: Path, lock: int) -> None:
    """Write into a lock file that is held which process holds it.

    Raises:
        CheckpointError: The file cannot be written; it is removed.
    """
    try:
        with explained(path):
            os.ftruncate(lock, 0)
            os.lseek(lock, 0, os.SEEK_SET)
            os.write(lock, f"{_named(os.getpid(), platform.node())}\n".encode())
    except CheckpointError:
        _discard(path, lock)
        raise


def _discard(path: Path, lock: int) -> None:
    """Remove a lock file that is held; processes that have opened it detect that it was replaced."""
    os.ftruncate(lock, 0)  # Windows does not remove an open file; its content is deleted instead
    with suppress(PermissionError):
        path.unlink(missing_ok=True)


def _is_alive(path: Path, named: str, supported: bool) -> bool:
    """Whether the process that a lock file names lives, although the kernel reports no lock."""
    words = named.split()
    if len(words) != 4 or not words[1].isdigit():
        return False
    if words[3] == platform.node() and os.name == "posix":
        # If locks work, the lock of a process on this host would have been detected.
        return not supported and is_running(int(words[1]))
    # Both times are those of the file system, whose clock may differ from this host's.
    with explained(path), tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name) as now:
        age = os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
    return -STALE_SECONDS < age < STALE_SECONDS


def _named(process: int, host: str) -> str:
    return f"process {process} on {host}"


@contextmanager
def _beating(path: Path) -> Iterator[None]:
    """Touch a file every few seconds within a `with` block."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(OSError):
                os.utime(path)

    # Not by `threading`, whose `start` waits forever for a thread that dies at once for lack of memory.
    _thread.start_new_thread(beat, ())
    try:
        yield
    finally:
        ended.set()
