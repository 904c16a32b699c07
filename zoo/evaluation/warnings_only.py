"""The output of lm-evaluation-harness reduced to its warnings."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def warnings_only() -> Iterator[None]:
    """Discard everything that is printed within a `with` block; warnings of the harness and of zoo stay.

    They go to stderr, those of zoo only if no handler was installed for them.
    """
    harness, zoo = logging.getLogger("lm_eval"), logging.getLogger("zoo")
    with ExitStack() as stack:
        _show(harness, "lm_eval: %(message)s", stack)
        if not zoo.hasHandlers():  # logging would write to the stderr that is redirected below
            _show(zoo, "%(message)s", stack)
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        yield


def _show(logger: logging.Logger, layout: str, stack: ExitStack) -> None:
    """Write the warnings of a logger to stderr until a stack is closed."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(layout))
    logger.addHandler(handler)
    stack.callback(logger.removeHandler, handler)
