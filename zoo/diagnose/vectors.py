"""Eigen learning rates, scalings, gates and norm scales, layer by layer (nGPT, Figures 6 and 14)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.diagnose.locations import ParameterLocation, locate_parameters
from zoo.models import Model
from zoo.nn.scaling import Scaling
from zoo.spec import Role

SCALE_ROLES = (Role.SCALING, Role.GATE, Role.NORM_SCALE)
"""The roles of the parameters by which other tensors are multiplied."""


@dataclass(frozen=True)
class ScaleVector:
    """A vector or a single number by which another tensor is multiplied.

    Attributes:
        location: the parameter.
        values: the effective factors, (n,) float64 on the CPU: for a scaling s_init / s_scale times the
            trained values, for an eigen learning rate the absolute values.
    """

    location: ParameterLocation
    values: Tensor


@torch.no_grad()
def scale_vectors(model: Model) -> list[ScaleVector]:
    """Every trained scaling, gate and norm scale, in the order of the modules.

    Args:
        model: a model on any device, not sharded.
    """
    return [
        ScaleVector(location, _factors(location).flatten().double().cpu())
        for location in locate_parameters(model)
        if location.spec.role in SCALE_ROLES
    ]


def _factors(location: ParameterLocation) -> Tensor:
    if isinstance(location.module, Scaling):
        return torch.as_tensor(location.module())
    return location.virtual()
