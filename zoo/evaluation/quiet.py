"""What lm-evaluation-harness has to say: its warnings, and nothing else that it prints."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """Keep its bars and lines off the screen, so that zoo's own output is the only one; warnings stay."""
    logger, handler = logging.getLogger("lm_eval"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("lm_eval: %(message)s"))
    logger.addHandler(handler)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.removeHandler(handler)
