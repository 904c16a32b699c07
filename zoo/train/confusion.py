"""What a classifier gets right, from the counts of its confusions.

A matrix counts the examples of each label, by row, that are taken for each class, by column. Counts
add up over batches and ranks, so what is computed from them is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.nn.loss import IGNORED


def confusions(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count.

    Args:
        labels: (n,) int64, -1 for an example that does not count.
        predicted: (n,) int64.
        classes: number of classes.

    Returns:
        (classes, classes) int64.
    """
    counted = labels != IGNORED
    pairs = labels[counted] * classes + predicted[counted]
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def accuracy(matrix: Tensor) -> float:
    """Share of the examples that are on the diagonal."""
    return (matrix.trace() / matrix.sum()).item()


def f1(matrix: Tensor) -> float:
    """2 precision recall / (precision + recall): of class 1 if there are two, otherwise the mean over all.

    The F1 of a class that has neither an example nor a prediction is 0.
    """
    of_each = 2 * matrix.diagonal() / (matrix.sum(0) + matrix.sum(1)).clamp(min=1)
    return (of_each[1] if len(of_each) == 2 else of_each.mean()).item()


def matthews(matrix: Tensor) -> float:
    """Matthews' correlation coefficient, for any number of classes (Gorodkin 2004); 0 where undefined.

    (c s - sum_k p_k t_k) / sqrt((s^2 - sum_k p_k^2) (s^2 - sum_k t_k^2)), with c right of s examples, p_k
    predictions of class k and t_k examples of it.
    """
    s, p, t = matrix.sum(), matrix.sum(0), matrix.sum(1)
    spread = ((s * s - p @ p) * (s * s - t @ t)).sqrt()
    return ((matrix.trace() * s - p @ t) / spread).item() if spread else 0.0
