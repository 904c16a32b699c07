"""The output of lm-evaluation-harness reduced to its warnings."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def warnings_only() -> Iterator[None]:
    """Discard everything that is printed within a `with` block; the harness's warnings go to stderr."""
    logger, handler = logging.getLogger("lm_eval"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("lm_eval: %(message)s"))
    logger.addHandler(handler)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.removeHandler(handler)
