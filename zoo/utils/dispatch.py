"""A lock for functions in which torch's operators are dispatched to Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_lock = RLock()


def dispatched_alone(function: Callable[P, R]) -> Callable[P, R]:
    """Let only one thread at a time run the functions that use a mode with ``__torch_dispatch__``.

    When such a mode meets an operator for the first time, torch makes a Python object for it, and keeps its
    address, but no reference to it, in C++ (c10/core/PyHandleCache.h). Two threads make two objects, one of
    which is deleted. If the kept address is that of the deleted one, the next use of the operator reads freed
    memory, which causes a segmentation fault or an error about an unrelated object (observed in torch 2.13).
    """

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _lock:
            return function(*args, **kwargs)

    return locked
