"""Amos' eta from the weights that are there, instead of from what the layers expect."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from zoo.spec import declared


@torch.no_grad()
def measure(model: nn.Module, names: Collection[str]) -> dict[str, float]:
    """The root mean square of trained parameters: the scale to which training has brought them.

    A variable is said to converge to M2(theta) = eta (Amos, section 3); a checkpoint has converged.

    Args:
        model: of declared parameters, not sharded.
        names: of the parameters that a checkpoint decided; others are left out.

    Returns:
        eta by name; without what is frozen, what a sphere gives its scale, and tensors of zeros.
    """
    found = {}
    for p in declared(model):
        if p.name in names and not p.spec.frozen and p.spec.sphere is None:
            size = p.parameter.detach().double().square().mean().sqrt().item()
            if size:
                found[p.name] = size
    return found
