"""Classification metrics from a confusion matrix.

Entry (i, j) counts the examples of label i that were predicted as class j. Matrices of batches and ranks add
up, so the metrics of the whole are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.nn.loss import IGNORE_INDEX


def confusions(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """The confusion matrix of some examples.

    Args:
        labels: (n,) int64, -1 for an example that is ignored.
        predicted: (n,) int64.
        classes: number of classes.

    Returns:
        (classes, classes) int64.
    """
    counted = labels != IGNORE_INDEX
    pairs = labels[counted] * classes + predicted[counted]
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def accuracy(matrix: Tensor) -> float:
    """The share of the examples of a confusion matrix, (classes, classes), whose prediction is right."""
    return (matrix.trace() / matrix.sum()).item()


def f1(matrix: Tensor) -> float:
    """F1, 2 precision recall / (precision + recall): of class 1 of two, or the mean over more classes.

    The F1 of a class that has neither examples nor predictions is 0.

    Args:
        matrix: (classes, classes), a confusion matrix, any dtype.
    """
    scores = 2 * matrix.diagonal() / (matrix.sum(0) + matrix.sum(1)).clamp(min=1)
    return (scores[1] if len(scores) == 2 else scores.mean()).item()


def matthews(matrix: Tensor) -> float:
    """Matthews' correlation coefficient, for any number of classes (Gorodkin 2004); 0 where it is undefined.

    (c s - sum_k p_k t_k) / sqrt((s^2 - sum_k p_k^2) (s^2 - sum_k t_k^2)), where c of s examples
    are right, p_k predictions are of class k, and t_k examples have label k.

    Args:
        matrix: (classes, classes) float64, a confusion matrix; products of its sums would exceed int64.
    """
    s, p, t = matrix.sum(), matrix.sum(0), matrix.sum(1)
    spread = ((s * s - p @ p) * (s * s - t @ t)).sqrt()
    return ((matrix.trace() * s - p @ t) / spread).item() if spread else 0.0
