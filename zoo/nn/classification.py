"""The heads and the loss of a classifier."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.nn.linear import Linear, matrix
from zoo.nn.loss import IGNORE_INDEX, LossParts
from zoo.nn.norm import unit
from zoo.nn.scaling import Scaling, ScalingConfig
from zoo.spec import Module
from zoo.utils.errors import ZooError
from zoo.utils.exact import exact


class TanhPooler(Linear):
    """tanh(W h + b), between the hidden state that a head reads and the head (BERT)."""

    def __init__(self, d_model: int) -> None:
        super().__init__(matrix(("pooled", d_model), ("embed", d_model)), bias=True)

    def forward(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """(n, d) -> the same."""
        return super().forward(x, scale).tanh()


class ClassificationHead(Module):
    """logits <- W x + b, or W x."""

    def __init__(self, classes: int, d_model: int, start: float | None = None, bias: bool = True) -> None:
        super().__init__()
        self.linear = Linear(matrix(("classes", classes), ("embed", d_model), start=start), bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> logits (n, classes)."""
        logits: Tensor = self.linear(x)
        return logits


class UnitClassificationHead(Module):
    """logits <- (W Norm(x)) s_z, where the rows of W have unit norm (nGPT, section 2.1)."""

    def __init__(self, classes: int, d_model: int, s_z: ScalingConfig) -> None:
        super().__init__()
        std = d_model**-0.5
        axes = ("classes", classes), ("embed", d_model)
        self.linear = Linear(matrix(*axes, input_std=std, sphere="embed", rescaled=s_z.trained))
        self.s_z = Scaling((("classes", classes),), s_z, d_model, target=1 / std)

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> logits (n, classes)."""
        logits: Tensor = self.linear(unit(x), self.s_z())
        return logits


def classify(
    logits: Tensor, labels: Tensor, *, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> LossParts:
    """Mean cross entropy of given logits, with z-loss, accuracy and predictions.

    Args:
        logits: (n, classes), floating point; the loss is computed in float32 or float64.
        labels: (n,) int64 in [0, classes), or -1 for an example that is ignored.
        z_loss: coefficient of mean(logsumexp^2).
        label_smoothing: share of the target probability that is spread evenly over all classes (Szegedy et
            al. 2015, section 7).

    Returns:
        The parts; the cross entropy is that of the smoothed labels. All parts are 0 if every example is
        ignored.

    Raises:
        ZooError: The shapes do not fit together, or the labels are not int64.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise ZooError(
            "classify: expected logits (n, classes) and int64 labels (n,), "
            f"got {tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}"
        )
    logits = exact(logits)
    counted = labels != IGNORE_INDEX
    count = counted.sum().clamp(min=1)
    summed = F.cross_entropy(
        logits, labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=label_smoothing
    )
    cross_entropy = summed / count
    regulariser = z_loss * (logits.logsumexp(-1).square() * counted).sum() / count
    predicted = logits.argmax(-1)
    accuracy = (predicted == labels).sum() / count
    return LossParts(
        cross_entropy + regulariser, cross_entropy.detach(), regulariser.detach(), accuracy, predicted
    )
