"""Validation: means over fixed examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from zoo.data import Batch
from zoo.nn.loss import IGNORED
from zoo.train.distributed import World
from zoo.train.precision import Precision, autocast
from zoo.train.step import Loss


class Evaluation(NamedTuple):
    """Means over the targets of all ranks.

    Attributes:
        cross_entropy: nats per target; z-loss is no part of it.
        accuracy: share of the targets that are predicted; None where the model's loss does not tell.
    """

    cross_entropy: float
    accuracy: float | None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Batch],
    world: World,
    precision: Precision,
) -> Evaluation:
    """Evaluate a model on all batches of all ranks.

    Args:
        model: put into evaluation mode meanwhile.
        loss: its loss.
        batches: this rank's inputs and targets; equally many on all ranks.
        world: the ranks.
        precision: of the forward pass.
    """
    sums = torch.zeros(3, dtype=world.exact, device=world.device)
    tells_accuracy = False
    model.eval()
    for batch in batches:
        *inputs, targets = (t.to(world.device) for t in batch)
        with autocast(precision, world.device):
            parts = loss(*inputs, targets)
        count = (targets != IGNORED).sum()
        sums[:2] += torch.stack((count, parts.cross_entropy * count))
        if parts.accuracy is not None:
            tells_accuracy = True
            sums[2] += parts.accuracy * count
    world.reshard(model)
    model.train()
    count, cross_entropy, correct = world.sum(sums).tolist()
    return Evaluation(cross_entropy / count, correct / count if tells_accuracy else None)
