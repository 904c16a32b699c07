"""Scales that are measured on a checkpoint's weights and replace declared ones: Amos' eta, and sigma."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import nn

from zoo.spec import declared
from zoo.utils.sharded import whole


@torch.no_grad()
def measure(model: nn.Module, names: Collection[str]) -> dict[str, float]:
    """Return the root mean squares of parameters, the scales to which training has brought them.

    eta is the scale M2(theta) to which a variable should converge (Amos, section 2).

    Args:
        model: a model of declared parameters; if it is sharded all ranks must call this.
        names: the parameters whose values come from a checkpoint; others are left out.

    Returns:
        eta by name, without frozen parameters, parameters on spheres, and tensors of zeros.
    """
    etas = {}
    for p in declared(model):
        if p.name in names and not p.spec.frozen and p.spec.sphere_dim is None:
            size = (whole(p.parameter.detach().double().square().sum()) / p.spec.numel).sqrt().item()
            if size:
                etas[p.name] = size
    return etas


@torch.no_grad()
def spreads(model: nn.Module, names: Collection[str]) -> dict[str, float]:
    """Return the standard deviations of the entries of parameters, 0 for constants.

    Args:
        model: a model of declared parameters; if it is sharded all ranks must call this.
        names: the parameters to measure, frozen ones included.
    """
    by_name = {}
    for p in declared(model):
        if p.name in names:
            entries = p.parameter.detach().double()
            mean = (whole(entries.sum()) / p.spec.numel).item()
            by_name[p.name] = math.sqrt(whole((entries - mean).square().sum()).item() / p.spec.numel)
    return by_name
