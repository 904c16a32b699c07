"""What a model's layers would make of their weights for every token, made once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from zoo.nn.linear import Matrix


@contextmanager
def prepared(model: nn.Module, rows: int) -> Iterator[None]:
    """Within it `model` is in evaluation mode and only read: changes of its weights go unseen.

    Gates, norms and low-rank terms are multiplied into their matrices, and on a CPU these are laid out
    for products with few rows. It takes the memory of another copy of the matrices.

    Args:
        model: any.
        rows: texts that are read at once, token by token.
    """
    training = model.training
    matrices = [module for module in model.modules() if isinstance(module, Matrix)]
    try:
        model.eval()
        with torch.no_grad():
            for matrix in matrices:
                matrix.prepare(rows)
        yield
    finally:
        for matrix in matrices:
            matrix.prepared = None
        model.train(training)
