"""Error reports of several processes: the first one that fails reports; the others end quietly.

The processes agree through the store by which the processes of a launch find each other, and can therefore do
so before a process group exists and after it has broken.
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

from zoo.utils.errors import DivergenceError, EndedRankError, RankError, ZooError

ASKING = 1.0
"""Seconds within which all processes that fail ask which of them reports."""

ARRIVING = 30
"""Seconds to wait for the other processes before an error is reported that precedes their first contact."""

FAILED = "!"
"""Prefix of the answer of a process that has failed."""

_stores: list[Store] = []
"""The store, once this process has joined the others; otherwise empty."""


def connect_store(timeout: int) -> Store:
    """The store of all processes, from the environment that torchrun and srun start them with.

    Args:
        timeout: seconds to wait for the others, at the first call.

    Raises:
        RuntimeError: The other processes did not join in time.
        ValueError: The environment lacks an address.
    """
    if not _stores:
        _stores.append(next(rendezvous("env://", timeout=timedelta(seconds=timeout)))[0])
    return _stores[0]


def gather_answers(store: Store, size: int, answer: str) -> list[str]:
    """The answers of all processes, in the order of their ranks.

    Args:
        store: the store of all processes, see `connect_store`.
        size: number of processes, which are waited for.
        answer: the answer of this process; `FAILED` and a message if it cannot continue.

    Raises:
        ZooError: A process has failed.
    """
    store.set(_place(_rank()), answer)
    texts = [store.get(_place(rank)).decode() for rank in range(size)]
    for rank, text in enumerate(texts):
        if text[0] == FAILED:
            raise ZooError(f"process {rank}: {text[1:]}")
    return texts


@contextmanager
def only_first_rank_reports() -> Iterator[None]:
    """Within a `with` block, let only the first of several failing processes raise; others end quietly."""
    try:
        yield
    except (ZooError, DivergenceError, RankError) as error:
        if isinstance(error, EndedRankError):
            time.sleep(ASKING / 2)  # a process that fails closes its connections before it can report why
        end_unless_first(str(error), 2 if isinstance(error, ZooError) else 1)
        raise
    except Exception as error:
        _is_first(str(error))  # the others fail because this process does
        raise


def end_unless_first(problem: str, status: int) -> None:
    """End this process quietly if another one has failed before it, which reports the reason.

    Args:
        problem: the message of this process, which those that wait for its answer receive.
        status: the exit status of this process.
    """
    if not _is_first(problem):
        # A launcher ends all processes once one has ended, and another process may still be reporting.
        time.sleep(2 * ASKING)
        sys.exit(status)


def keep_store_alive() -> None:
    """Keep a failed process alive while others may query its store; torchrun has a store of its own."""
    if _rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        time.sleep(ASKING)


@cache
def _is_first(problem: str) -> bool:
    """Whether this process is the first one that fails."""
    try:
        store = connect_store(ARRIVING)
        first = store.compare_set("failed", "", str(_rank())).decode() == str(_rank())
        store.set(_place(_rank()), FAILED + problem)
    except (RuntimeError, ValueError):  # there is no other process, or the one that holds the store is gone
        return True
    return first


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _place(rank: int) -> str:
    return f"ready/{rank}"
