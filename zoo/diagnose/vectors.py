"""Eigen learning rates, scalings, gates and norm scales, layer by layer (nGPT, Figures 6 and 14)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.diagnose.places import Place, places
from zoo.models import Model
from zoo.nn.scaling import Scaling
from zoo.spec import Role

ROLES = (Role.SCALING, Role.GATE, Role.NORM_SCALE)
"""What multiplies: of these the values are of interest, not only their size."""


@dataclass(frozen=True)
class Vector:
    """A vector, or a single number, that something is multiplied by.

    Attributes:
        place: where it is.
        values: the factors themselves, (n,) float64 on the CPU: for a scaling not what is trained but
            that times s_init / s_scale, for an eigen learning rate its absolute value.
    """

    place: Place
    values: Tensor


@torch.no_grad()
def vectors(model: Model) -> list[Vector]:
    """Every scaling, gate and norm scale that is a parameter, in the order of the modules.

    Args:
        model: on any device, not sharded.
    """
    return [
        Vector(place, _effective(place).flatten().double().cpu())
        for place in places(model)
        if place.spec.role in ROLES
    ]


def _effective(place: Place) -> Tensor:
    if isinstance(place.owner, Scaling):
        effective = place.owner()
        assert isinstance(effective, Tensor), "a scaling with a parameter is not fixed"
        return effective
    return place.virtual()
