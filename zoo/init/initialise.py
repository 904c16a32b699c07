"""Fill a model with initial values: each parameter from a generator of its own, seeded by (seed, name)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from zoo.init.schemes import RANDOM, Init, virtual_std
from zoo.nn.sphere import project
from zoo.spec import Module, ParamSpec, Role, declared


def generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator for one parameter.

    With a generator for each, adding a layer changes no other parameter, and any number of ranks starts
    from the same values.

    Args:
        seed: the model's seed, any integer.
        name: the parameter's full name.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def draw(init: Init, spec: ParamSpec, source: torch.Generator) -> Tensor:
    """Return the whole initial tensor of one parameter, float32 on the CPU, not yet projected to a sphere.

    Raises:
        ValueError: A scaling vector or a gate has no `start`.
    """
    if spec.role in RANDOM and spec.start is None:
        std = virtual_std(init, spec) / spec.scale
        return torch.empty(spec.shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=source)
    constant = {Role.NORM_SCALE: 1.0, Role.BIAS: 0.0}.get(spec.role, spec.start)
    if constant is None:
        raise ValueError(f"a {spec.role} needs a start")
    return torch.full(spec.shape, constant, dtype=torch.float32, device="cpu")


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int, names: Collection[str] | None = None) -> None:
    """Fill declared parameters and buffers in place, and project to the spheres.

    A sharded parameter takes its part of the whole tensor, so that one rank and many start equal.

    Args:
        model: materialised on any device (not meta), plain or sharded.
        init: the initialisation scheme.
        seed: any integer.
        names: the parameters and buffers to fill; None: all.

    Raises:
        ValueError: A parameter has no declaration.
    """
    parameters = [p for p in declared(model) if names is None or p.name in names]
    for p in parameters:
        fill(p.parameter.data, draw(init, p.spec, generator(seed, p.name)))
    for path, module in model.named_modules():
        for local, start in module.buffer_starts.items() if isinstance(module, Module) else ():
            name = f"{path}.{local}" if path else local
            if names is None or name in names:
                reset(module.get_buffer(local), start, generator(seed, name))
    project([(p.parameter, p.spec.sphere_dim) for p in parameters if p.spec.sphere_dim is not None])
    for p in parameters:
        if (reparameterisation := p.module.reparameterised.get(p.local)) is not None:
            reparameterisation.initialise(p.module, p.local)


def reset(buffer: Tensor, start: float | Literal["unit"], source: torch.Generator) -> None:
    """Fill a buffer in place with its start: a constant, or "unit" for a random vector of unit norm."""
    if start == "unit":
        vector = torch.empty(buffer.shape, dtype=torch.float32, device="cpu").normal_(generator=source)
        buffer.copy_(vector / vector.norm())
    else:
        buffer.fill_(start)


def fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into the data of a parameter, or a shard's part of it into the shard."""
    if isinstance(parameter, DTensor):
        whole = whole.to(device=parameter.device, dtype=parameter.dtype)
        parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
    else:
        parameter.copy_(whole)
