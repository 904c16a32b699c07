"""The loss of a classifier, whose logits are few."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.nn.loss import IGNORED, LossParts
from zoo.utils.errors import ZooError


def classify(
    logits: Tensor, labels: Tensor, *, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> LossParts:
    """Mean cross entropy of logits that are at hand, with z-loss; accuracy and predictions.

    Args:
        logits: (n, classes), floating point; they are rounded to no less than float32.
        labels: (n,) int64 in [0, classes), or -1 for an example that does not count.
        z_loss: coefficient of mean(logsumexp^2).
        label_smoothing: share of every label that is spread evenly over all classes (Szegedy et al.
            2015, section 7).

    Returns:
        The parts; the cross entropy is that of the smoothed labels. Without any counted label all
        are 0.

    Raises:
        ZooError: shapes that do not fit together, labels that are not int64.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise ZooError(
            "classify: expected logits (n, classes) and int64 labels (n,), "
            f"got {tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}"
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counted = labels != IGNORED
    count = counted.sum().clamp(min=1)
    summed = F.cross_entropy(
        logits, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )
    cross_entropy = summed / count
    regulariser = z_loss * (logits.logsumexp(-1).square() * counted).sum() / count
    predicted = logits.argmax(-1)
    accuracy = (predicted == labels).sum() / count
    return LossParts(
        cross_entropy + regulariser, cross_entropy.detach(), regulariser.detach(), accuracy, predicted
    )
