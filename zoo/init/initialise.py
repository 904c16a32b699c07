"""Fill a model with initial values: each parameter from a generator of its own, seeded by (seed, name)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.init.schemes import RANDOM, Init, virtual_std
from zoo.nn.sphere import project
from zoo.spec import Module, ParamSpec, Role, declared
from zoo.utils.sharded import is_sharded, own_slices

CHUNK = 2**22
"""How many random numbers are in memory at a time while a shard is drawn; a multiple of `BLOCK`."""
BLOCK = 16
"""torch's CPU generator draws normal numbers in blocks of 16, and redraws the last 16 of a tensor."""


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


def draw(init: Init, spec: ParamSpec, source: torch.Generator, rows: slice | None = None) -> Tensor:
    """Return the initial tensor of one parameter, float32 on the CPU, not yet projected to a sphere.

    Args:
        init: the initialisation scheme.
        spec: the declaration of the parameter.
        source: the generator of the parameter.
        rows: the range of the first dimension to return, with the numbers that it has in the whole tensor;
            None: all.

    Raises:
        ValueError: A scaling vector or a gate has no `start`.
    """
    if spec.role in RANDOM and spec.start is None:
        std = virtual_std(init, spec) / spec.scale
        if rows is not None:
            return _draw_rows(spec.shape, std, source, rows)
        return torch.empty(spec.shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=source)
    constant = {Role.NORM_SCALE: 1.0, Role.BIAS: 0.0}.get(spec.role, spec.start)
    if constant is None:
        raise ValueError(f"a {spec.role} needs a start")
    shape = spec.shape if rows is None else (rows.stop - rows.start, *spec.shape[1:])
    return torch.full(shape, constant, dtype=torch.float32, device="cpu")


def _draw_rows(shape: tuple[int, ...], std: float, source: torch.Generator, rows: slice) -> Tensor:
    """Return some rows of a random tensor, with at most one more chunk of it in memory.

    The numbers before them are drawn and dropped, because the generator cannot skip any.
    """
    width, total = math.prod(shape[1:]), math.prod(shape)
    begin, end = rows.start * width, rows.stop * width
    result = torch.empty(end - begin, dtype=torch.float32, device="cpu")
    start = 0
    while start < end:
        stop = start + CHUNK if start + CHUNK + BLOCK <= total else total
        chunk = torch.empty(stop - start, dtype=torch.float32, device="cpu").normal_(0, std, generator=source)
        first, last = max(start, begin), min(stop, end)
        if first < last:
            result[first - begin : last - begin] = chunk[first - start : last - start]
        start = stop
    return result.view(rows.stop - rows.start, *shape[1:])


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int, names: Collection[str] | None = None) -> None:
    """Fill declared parameters and buffers in place, and project to the spheres.

    A rank draws the rows that it holds of a sharded parameter, with the numbers that a single process draws.

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
        _fill(p.parameter.data, init, p.spec, generator(seed, p.name))
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


def _fill(parameter: Tensor, init: Init, spec: ParamSpec, source: torch.Generator) -> None:
    """Fill the data of a parameter: the whole tensor, or the rows or the other part that this shard holds."""
    if is_sharded(parameter) and parameter.dim():
        rows, *rest = own_slices(parameter)
        parameter.to_local().copy_(draw(init, spec, source, rows)[:, *rest])
    else:
        parameter.copy_(draw(init, spec, source))
