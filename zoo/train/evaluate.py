"""Evaluation on validation examples: means over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.data.dataset import Batch
from zoo.nn.loss import IGNORE_INDEX
from zoo.run.train_config import Precision
from zoo.train.confusion import accuracy, confusions, f1, matthews
from zoo.train.distributed import World
from zoo.train.precision import autocast
from zoo.train.step import Loss
from zoo.utils.errors import DataError


class EvaluationStopped(Exception):  # noqa: N818 - it is no error
    """Raised when an evaluation ends early, because a stop was requested on some rank."""


class Evaluation(NamedTuple):
    """The metrics over the examples of all ranks; only classifiers have other ones than cross entropy.

    Attributes:
        cross_entropy: mean over the targets in nats, without z-loss.
        accuracy: share of the targets that are predicted correctly.
        f1: F1 of class 1 of two, or the mean over more classes, see `zoo.train.confusion.f1`.
        matthews: Matthews' correlation coefficient.
    """

    cross_entropy: float
    accuracy: float | None = None
    f1: float | None = None
    matthews: float | None = None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Batch],
    world: World,
    precision: Precision,
    classes: int | None = None,
    compiled: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Evaluate a model on all batches of all ranks.

    Args:
        model: the model; it is in evaluation mode during the call.
        loss: its loss.
        batches: this rank's inputs and targets; equally many on all ranks.
        world: the ranks.
        precision: precision of the forward pass.
        classes: number of classes of a classifier; None: the model is no classifier.
        compiled: whether the loss is compiled, or parts of it.
        stop: whether a stop was requested on this rank; called before every batch.

    Raises:
        EvaluationStopped: A stop was requested on some rank.
        DataError: The batches have no targets.
    """
    sums = torch.zeros(2, dtype=world.sum_dtype, device=world.device)
    matrix = torch.zeros((classes or 0, classes or 0), dtype=world.sum_dtype, device=world.device)
    model.eval()
    size = None
    try:
        for batch in batches:
            if stop is not None and _any_rank(stop(), world):
                raise EvaluationStopped
            *inputs, targets = (t.to(world.device) for t in batch)
            size = len(targets) if size is None else size
            # A smaller last batch is not worth another compilation.
            smaller = compiled and len(targets) < size
            last = torch.compiler.set_stance("force_eager") if smaller else nullcontext()
            with last, autocast(precision, world.device):
                parts = loss(*inputs, targets)
            count = (targets != IGNORE_INDEX).sum()
            sums += torch.stack((count, parts.cross_entropy * count))
            if classes is not None:
                assert parts.predicted is not None  # the loss of every classifier predicts
                matrix += confusions(targets, parts.predicted, classes)
    finally:
        world.reshard(model)
        model.train()
    count, cross_entropy = world.sum(sums).tolist()
    if not count:
        raise DataError(f"data: the validation examples have no targets: all are {IGNORE_INDEX} (ignored)")
    mean = cross_entropy / count
    if classes is None:
        return Evaluation(mean)
    return classification_metrics(mean, world.sum(matrix).double().cpu())


def bits_per_byte(cross_entropy: float, bytes_per_target: float) -> float:
    """The cross entropy of a text per byte, by which models with different tokenizers can be compared.

    Args:
        cross_entropy: mean over the targets in nats.
        bytes_per_target: UTF-8 bytes of text per target.
    """
    return cross_entropy / (bytes_per_target * math.log(2))


def _any_rank(asked: bool, world: World) -> bool:
    """Whether any rank was asked to stop; a single rank needs no communication."""
    if world.size == 1:
        return asked
    return bool(world.sum(torch.tensor(float(asked), device=world.device)) > 0)


def classification_metrics(cross_entropy: float, matrix: Tensor) -> Evaluation:
    """The metrics of a classifier.

    Args:
        cross_entropy: mean over the targets in nats.
        matrix: (classes, classes) float64, see `zoo.train.confusion`.
    """
    return Evaluation(cross_entropy, accuracy(matrix), f1(matrix), matthews(matrix))
