"""Validation loss: the mean cross entropy over fixed sequences."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from zoo.data import Batch
from zoo.nn.loss import IGNORED
from zoo.train.distributed import World
from zoo.train.precision import Precision, autocast
from zoo.train.step import Loss


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Batch],
    world: World,
    precision: Precision,
) -> float:
    """The mean cross entropy in nats per target, over all ranks; z-loss is no part of it.

    Args:
        model: put into evaluation mode meanwhile.
        loss: its loss.
        batches: this rank's inputs and targets; equally many on all ranks.
        world: the ranks.
        precision: of the forward pass.
    """
    sums = torch.zeros(2, dtype=world.exact, device=world.device)
    model.eval()
    for batch in batches:
        *inputs, targets = (t.to(world.device) for t in batch)
        with autocast(precision, world.device):
            mean = loss(*inputs, targets).cross_entropy
        count = (targets != IGNORED).sum()
        sums += torch.stack((mean * count, count))
    world.reshard(model)
    model.train()
    total, count = world.sum(sums).tolist()
    return float(total / count)
