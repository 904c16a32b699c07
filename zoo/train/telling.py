"""Of several processes that fail, one says why; the others end without a word.

They agree by the store through which the processes of a launch find each other, so that they can do so before
a process group exists and after it has broken.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from zoo.utils.errors import DivergenceError, RankError, ZooError

ASKING = 1.0
"""Seconds within which all processes that fail ask which of them tells why."""

ARRIVING = 30
"""Seconds to wait for the other processes before a mistake is told that was found before they were met."""

FAILED = "!"
"""What the answer of a process begins with that has failed instead."""

_stores: list[Store] = []
"""The store of this process, once it has joined the others."""


def joined(timeout: int) -> Store:
    """The store of all processes, from the environment that torchrun and srun start them with.

    Args:
        timeout: seconds to wait for the others, at the first call.

    Raises:
        RuntimeError: they did not come.
        ValueError: the environment lacks an address.
    """
    if not _stores:
        _stores.append(next(rendezvous("env://", timeout=timedelta(seconds=timeout)))[0])
    return _stores[0]


def answers(store: Store, size: int, answer: str) -> list[str]:
    """What each process says about itself, in order.

    Args:
        store: see `joined`.
        size: number of processes, which are waited for.
        answer: what this one says; `FAILED` and a message if it cannot go on.

    Raises:
        ZooError: a process has failed.
    """
    store.set(_place(_rank()), answer)
    texts = [store.get(_place(rank)).decode() for rank in range(size)]
    for rank, text in enumerate(texts):
        if text[0] == FAILED:
            raise ZooError(f"process {rank}: {text[1:]}")
    return texts


@contextmanager
def one_tells() -> Iterator[None]:
    """Within, what several processes raise is raised by the first of them; the others end quietly."""
    try:
        yield
    except (ZooError, DivergenceError, RankError) as error:
        end_unless_first(str(error), 2 if isinstance(error, ZooError) else 1)
        raise
    except Exception as error:
        _is_first(str(error))  # the others fail because this one does
        raise


def end_unless_first(problem: str, status: int) -> None:
    """End this process quietly if another one has failed before it, which tells why.

    Args:
        problem: what this one would say; those that wait for its answer hear of it.
        status: its exit status.
    """
    if not _is_first(problem):
        time.sleep(2 * ASKING)  # a launcher that sees one process end ends the others, who may be telling
        sys.exit(status)


def linger() -> None:
    """Keep a failed process for as long as the others may ask, if they ask it: torchrun answers by itself."""
    if _rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        time.sleep(ASKING)


@cache
def _is_first(problem: str) -> bool:
    """Whether this process is the first one that fails."""
    try:
        store = joined(ARRIVING)
        first = store.compare_set("failed", "", str(_rank())).decode() == str(_rank())
        store.set(_place(_rank()), FAILED + problem)
    except (RuntimeError, ValueError):  # there is no other, or the one that holds the store is gone
        return True
    return first


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _place(rank: int) -> str:
    return f"ready/{rank}"
