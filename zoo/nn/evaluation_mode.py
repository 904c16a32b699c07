"""Evaluation mode for a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within a `with` block, and back into its former mode afterwards.

    Args:
        model: any model; all of its modules get the former mode of the model itself.
    """
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
