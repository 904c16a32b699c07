"""nGPT's projection after the step: it belongs to the model's declarations, not to an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from zoo.nn.sphere import project

if TYPE_CHECKING:
    from zoo.init.registry import Entry


def attach_projection(optimizer: Optimizer, entries: Sequence[Entry]) -> None:
    """After every step of `optimizer`, put the vectors of `entries` that live on spheres back there.

    No training loop can forget it, ours or a user's. Parameters without a sphere stay as they are.

    Args:
        optimizer: any optimizer of the parameters of `entries`.
        entries: the registry of the model, plain or sharded.
    """
    on_spheres = [(entry, dim) for entry in entries if (dim := entry.sphere_dim) is not None]
    if not on_spheres:
        return

    def back_to_the_spheres(*_: Any) -> None:
        project((entry.parameter, dim) for entry, dim in on_spheres)

    optimizer.register_step_post_hook(back_to_the_spheres)
