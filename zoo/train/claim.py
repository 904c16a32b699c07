"""Locks by which one process at a time trains a run; a second one is refused before any other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from zoo.utils.errors import ZooError
from zoo.utils.lock import holder, locked
from zoo.utils.run_folder import RunFolder

ASKING = 0.5
"""Seconds to wait for a lock that another process may hold for a moment to test who has it."""


def require_free(run: RunFolder) -> None:
    """Refuse a run that another process trains or is about to begin.

    Raises:
        ZooError: Another process trains the run; the message names it.
    """
    for lock in (run.starting, run.lock):
        if (other := holder(lock)) is not None:
            raise ZooError(f"{_message(run)} ({other})")


@contextmanager
def claimable(run: RunFolder) -> Iterator[Callable[[], None]]:
    """Make this process the only one that trains a run, until the end of a `with` block.

    Args:
        run: the run, whose folder need not exist yet: until it exists, a lock beside it is held.

    Yields:
        A function to call before anything else is done for the run, and once more when its folder exists. It
        raises a ZooError if another process trains the run.
    """
    missing = [*takewhile(lambda folder: not folder.exists(), run.starting.parents)]
    with ExitStack() as whole, ExitStack() as beginning:
        beginning.callback(_remove_empty, missing)
        held: set[Path] = set()

        def hold(lock: Path, stack: ExitStack) -> None:
            if lock not in held:
                stack.enter_context(locked(lock, _message(run), timeout=ASKING))
                held.add(lock)

        def claim() -> None:
            if not held:
                require_free(run)
            if not run.exists:
                hold(run.starting, beginning)
            if run.exists:  # another process may just have created it
                hold(run.lock, whole)
                beginning.close()

        yield claim


def _message(run: RunFolder) -> str:
    return f"{run}: another `zoo train` is at work on this run; wait for it, or stop it"


def _remove_empty(folders: list[Path]) -> None:
    """Remove the empty ones of these folders, from the innermost outwards."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
