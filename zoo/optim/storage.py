"""Matrices stored in bfloat16, with stochastic rounding after each step.

nGPT's authors store the matrices of their blocks in bfloat16 too, but not the embeddings; their moments are
in bfloat16, and each step is rounded to nearest (README and code of github.com/NVIDIA/ngpt). Stochastic
rounding, slots in float32 and tables in bfloat16 are our choices. A step computes with float32 copies: the
optimizer, the projection onto spheres and all other hooks see float32, and the result is rounded up or down
with probabilities that make the rounding unbiased. Rounding to nearest would lose every step smaller than
half the distance between two numbers, and with it most of a slow drift.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.optim.averages import Averaging
from zoo.optim.slots import slots_are_known
from zoo.spec import MATRICES, declared
from zoo.utils.errors import ConfigError

LOW_BITS = 16
"""Number of bits dropped from float32: bfloat16 is float32 without its last 16 bits."""


def round_stochastically(x: Tensor) -> Tensor:
    """Round float32 to bfloat16, up or down at random with mean `x`, by torch's generator.

    Infinities and NaN stay what they are.
    """
    noise = torch.randint(0, 1 << LOW_BITS, x.shape, dtype=torch.int32, device=x.device)
    kept = (x.contiguous().view(torch.int32) + noise) & -(1 << LOW_BITS)
    rounded = kept.view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)  # a NaN plus noise may be any number


def matrices_in_bfloat16(model: nn.Module) -> list[nn.Parameter]:
    """Round the matrices of a model to bfloat16, to nearest, and return them.

    Args:
        model: a model of declared parameters, on any device, not sharded.
    """
    matrices = [p.parameter for p in declared(model) if p.spec.role in MATRICES]
    for p in matrices:
        p.data = p.data.bfloat16()
    return matrices


def store_in_bfloat16(model: nn.Module, optimizer: Optimizer) -> None:
    """Store the matrices of a model in bfloat16 from now on; their present values are rounded to nearest.

    Call it after everything else was attached to the optimizer and after its state was loaded, because torch
    would cast a loaded state to bfloat16.

    Args:
        model: a model of declared parameters, not sharded.
        optimizer: an optimizer whose slots are known, and that has not taken a step since it was built.

    Raises:
        ConfigError: The optimizer cannot round stochastically: its slots are not known, or it moves the
            weights between its steps.
    """
    if not slots_are_known(optimizer) or isinstance(optimizer, Averaging):
        raise ConfigError(
            f"train.storage bf16: {type(optimizer).__name__} cannot round stochastically; expected an "
            "optimizer of zoo that moves weights in its steps alone, or train.storage fp32"
        )
    matrices = matrices_in_bfloat16(model)
    gradients: dict[Tensor, Tensor | None] = {}

    def to_float32(*_: object) -> None:
        for p in matrices:
            gradients[p], p.grad = p.grad, None
            p.data = p.data.float()
            p.grad = None if (g := gradients[p]) is None else g.float()

    def to_bfloat16(*_: object) -> None:
        for p in matrices:
            p.grad = None
            p.data = round_stochastically(p.data)
            p.grad = gradients.pop(p)

    optimizer.register_step_pre_hook(to_float32)
    optimizer.register_step_post_hook(to_bfloat16)
