"""Fold gates into a plain model, and the other way round, with the difference this makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.errors import ZooError
from zoo.models import Model
from zoo.reparam.gate import attach, detach
from zoo.reparam.methods import Reparam, WeSaR
from zoo.spec import MATRICES, declared


@dataclass(frozen=True)
class Conversion:
    """What a conversion did.

    Attributes:
        tensors: number of tensors rewritten.
        max_difference: largest absolute difference of any logit on a fixed input.
        max_logit: largest absolute logit before, for scale.
    """

    tensors: int
    max_difference: float
    max_logit: float


@torch.no_grad()
def merge(model: Model) -> Conversion:
    """Fold every gate into the tensor behind it, in place: a plain model, no inference cost.

    Args:
        model: with gates or without.

    Returns:
        The number of tensors folded and the largest difference of a logit.
    """
    before = _logits(model)
    gated = [p for p in declared(model) if p.local in p.module.reparameterised]
    for p in gated:
        p.parameter.copy_(p.module.virtual(p.local))
        detach(p.module, p.local)
    return _compare(len(gated), before, _logits(model))


@torch.no_grad()
def split(model: Model, method: Reparam) -> Conversion:
    """Turn a plain model into WeSaR, in place: each gate takes its matrix's own scale.

    Args:
        model: without gates.
        method: a `WeSaR`, for its sigma and whether the gates are trained.

    Returns:
        The number of matrices split and the largest difference of a logit.

    Raises:
        ZooError: another method, gates already there, or a matrix of zeros.
    """
    if not isinstance(method, WeSaR):
        raise ZooError(f"split: expected reparam 'wesar', got '{getattr(method, 'type', method)}'")
    parameters = list(declared(model))
    gated = [p.name for p in parameters if p.local in p.module.reparameterised]
    if gated:
        raise ZooError(
            f"split: the model has gates already ({gated[0]} and {len(gated) - 1} more); merge it first"
        )
    matrices = [p for p in parameters if p.spec.role in MATRICES and p.spec.sphere is None]
    scales = [p.parameter.double().square().mean().sqrt().item() for p in matrices]
    zeros = [p.name for p, scale in zip(matrices, scales, strict=True) if not scale]
    if zeros:
        raise ZooError(f"split: a matrix of zeros has no scale for a gate to take: {', '.join(zeros)}")
    before = _logits(model)
    for p, scale in zip(matrices, scales, strict=True):
        start = scale / method.common_std(p.spec)
        p.parameter.div_(start)
        attach(p.module, p.local, start, trained=method.trained)
        if method.trained:
            gate = p.module._parameters[f"{p.local}_gate"]
            assert gate is not None
            gate.data = torch.full((1,), start, dtype=p.parameter.dtype, device=p.parameter.device)
    return _compare(len(matrices), before, _logits(model))


def _logits(model: Model) -> Tensor:
    *inputs, _ = model.example()
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    logits: Tensor = model(*(t.to(device) for t in inputs))
    model.train(training)
    return logits


def _compare(tensors: int, before: Tensor, after: Tensor) -> Conversion:
    return Conversion(tensors, (after - before).abs().max().item(), before.abs().max().item())
