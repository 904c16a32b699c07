"""Weights computed once for many forward passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from zoo.nn.evaluation_mode import evaluation_mode
from zoo.nn.linear import Matrix


@contextmanager
def prepared(model: nn.Module, rows: int, *, compiled: bool = False) -> Iterator[None]:
    """Speed up the forward passes within a `with` block, which puts the model into evaluation mode.

    Reparameterisations are folded into a copy of their matrices, which on a CPU is laid out for products with
    few rows. Changes of the weights within the block have no effect.

    Args:
        model: any model.
        rows: number of texts that are read at once, token by token.
        compiled: whether the forward passes are compiled.
    """
    matrices = [module for module in model.modules() if isinstance(module, Matrix)]
    with evaluation_mode(model):
        try:
            with torch.no_grad():
                for matrix in matrices:
                    matrix.prepare(rows, compiled)
            yield
        finally:
            for matrix in matrices:
                matrix.prepared = None
