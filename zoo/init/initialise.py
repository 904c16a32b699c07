"""Fill a model: every parameter from its own generator, seeded by (seed, name)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from zoo.init.schemes import DRAWN, Init, virtual_std
from zoo.nn.sphere import project
from zoo.spec import Module, ParamSpec, Role, declared


def generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator of its own for one parameter.

    Adding a layer then moves no other weight, and any number of ranks starts equal.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def draw(init: Init, spec: ParamSpec, source: torch.Generator) -> Tensor:
    """The whole initial tensor of one parameter, float32 on the CPU, not yet on a sphere."""
    if spec.role in DRAWN and spec.start is None:
        std = virtual_std(init, spec) / spec.scale
        return torch.empty(spec.shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=source)
    constant = {Role.NORM_SCALE: 1.0, Role.BIAS: 0.0}.get(spec.role, spec.start)
    if constant is None:
        raise ValueError(f"a {spec.role} needs a start")
    return torch.full(spec.shape, constant, dtype=torch.float32, device="cpu")


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int, names: Collection[str] | None = None) -> None:
    """Fill every declared parameter and buffer in place and put the spheres in order.

    Sharded parameters take their part of the whole tensor, so that one rank and many start equal.

    Args:
        model: materialised on any device (not meta), plain or sharded.
        init: the scheme.
        seed: any integer.
        names: of the parameters and buffers to fill; None: all.

    Raises:
        ValueError: a parameter without a declaration.
    """
    parameters = [p for p in declared(model) if names is None or p.name in names]
    for p in parameters:
        fill(p.parameter.data, draw(init, p.spec, generator(seed, p.name)))
    for path, module in model.named_modules():
        for local, start in module.buffer_starts.items() if isinstance(module, Module) else ():
            buffer = f"{path}.{local}" if path else local
            if names is None or buffer in names:
                reset(module.get_buffer(local), start, generator(seed, buffer))
    project([(p.parameter, p.spec.sphere_dim) for p in parameters if p.spec.sphere_dim is not None])
    for p in parameters:
        if (reparameterisation := p.module.reparameterised.get(p.local)) is not None:
            reparameterisation.initialise(p.module, p.local)


def reset(buffer: Tensor, start: float | Literal["unit"], source: torch.Generator) -> None:
    """Put a buffer where it starts, in place."""
    if start == "unit":
        vector = torch.empty(buffer.shape, dtype=torch.float32, device="cpu").normal_(generator=source)
        buffer.copy_(vector / vector.norm())
    else:
        buffer.fill_(start)


def fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy the whole tensor into a parameter's data, or its shard of it."""
    if isinstance(parameter, DTensor):
        whole = whole.to(device=parameter.device, dtype=parameter.dtype)
        parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
    else:
        parameter.copy_(whole)
