"""Turn a reparameterised model into a plain one and back, and measure the difference of the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.init.initialise import draw, generator
from zoo.init.schemes import Init
from zoo.models import Model
from zoo.nn.evaluation_mode import evaluation_mode
from zoo.reparam.base import Reparam
from zoo.reparam.gate import attach_gate, detach, is_plain
from zoo.spec import ParamSpec, declared
from zoo.utils.errors import ConfigError, ZooError
from zoo.utils.printable import first_few


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion to another reparameterisation.

    Attributes:
        tensors: number of tensors rewritten.
        max_difference: largest absolute difference of any logit on a fixed input.
        max_logit: largest absolute logit before the conversion, for comparison.
    """

    tensors: int
    max_difference: float
    max_logit: float


@torch.no_grad()
def merge(model: Model) -> Conversion:
    """Replace the trained tensors by the virtual ones: the model is a plain one then, without extra cost.

    All frozen parameters become trainable again: those that the method had frozen, and those that `freeze`
    rules had. The lookup factor of a tied table stays.

    Args:
        model: reparameterised or not; changed in place.

    Returns:
        The number of tensors merged and the largest difference of a logit.
    """
    before = _logits(model)
    parameters = list(declared(model))
    merged = [p for p in parameters if p.local in p.module.reparameterised]
    for p in merged:
        p.parameter.copy_(p.module.virtual(p.local))
        lookup = detach(p.module, p.local).lookup
        if lookup != 1.0:
            attach_gate(p.module, p.local, 1.0, trained=False, lookup=lookup)
    for p in [p for p in declared(model) if p.spec.frozen]:
        p.module.freeze(p.local, False)
    return _compare(len(merged), before, _logits(model))


class EmpiricalInit(Init):
    """The scheme that an existing tensor follows."""

    std: float
    lookup: float

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the tensor's root mean square."""
        return self.std

    def lookup_scale(self, spec: ParamSpec) -> float:
        """Return the factor that the tensor's look-ups have already."""
        return self.lookup


@torch.no_grad()
def split(model: Model, method: Reparam, init: Init, seed: int = 0) -> Conversion:
    """Turn a plain model into a reparameterised one that computes the same, in place.

    WeSaR's gates start at the scales of the tensors, Weight Normalization's lengths at the norms of their
    rows; LoRA leaves the tensors as they are. The lookup factor of a tied table stays. The tensors that are
    added are float32, also in a model of bfloat16 or float16, which still computes in its own dtype.

    Args:
        model: a plain model.
        method: the method of reparameterisation.
        init: the scheme that LoRA's A is drawn from.
        seed: the seed of A.

    Returns:
        The number of tensors the method acts on and the largest difference of a logit.

    Raises:
        ZooError: The method changes the outputs of a model, a tensor is reparameterised or has a
            fixed factor already, or it is zero and the method divides by its scale.
    """
    parameters = list(declared(model))
    names = require_split(model, method)
    if reparameterised := [p.name for p in parameters if not is_plain(p.module, p.local)]:
        raise ZooError(
            f"split: {first_few(reparameterised, most=1)}: reparameterised already, or multiplied by a fixed "
            "factor (embedding or residual scaling); merge the model first"
        )
    chosen = [p for p in parameters if p.name in names]
    scales = [p.parameter.double().square().mean().sqrt().item() for p in chosen]
    zeros = [p.name for p, scale in zip(chosen, scales, strict=True) if not scale]
    if zeros and method.needs_scale:
        raise ZooError(f"split: a tensor of zeros has no scale: {first_few(zeros)}")
    before = _logits(model)
    for p in parameters:
        if method.freezes(p.spec):
            p.module.freeze(p.local)
    for p, scale in zip(chosen, scales, strict=True):
        has_lookup_factor = p.local in p.module.reparameterised
        lookup = detach(p.module, p.local).lookup if has_lookup_factor else 1.0
        with p.parameter.device:
            method.attach(p, EmpiricalInit(std=scale, lookup=lookup))
        p.parameter.div_(p.module.specs[p.local].scale)
    old = {p.name for p in parameters}
    for new in [p for p in declared(model) if p.name not in old]:
        new.parameter.copy_(draw(init, new.spec, generator(seed, new.name)))
    for p in chosen:
        p.module.reparameterised[p.local].initialise(p.module, p.local)
    return _compare(len(chosen), before, _logits(model))


def require_split(model: Model, method: Reparam) -> set[str]:
    """Refuse a method that `split` cannot give to a model, without any computation.

    Args:
        model: reparameterised or not.
        method: the method of reparameterisation.

    Returns:
        The names of the tensors that the method acts on.

    Raises:
        ZooError: The method changes the outputs of a model, finds no tensor of it, has no effect on any, or
            cannot act on one.
    """
    kind, of = getattr(method, "type", ""), str(model.recipe.model.type)
    parameters = list(declared(model))
    try:
        method.require_tensors(parameters, of)
    except ConfigError as error:
        raise ZooError(f"split: {error}") from error
    names, without_effect = method.checked_choice(parameters)
    if not names and without_effect:
        raise ZooError(
            f"split: reparam '{kind}' has no effect on a model of type '{of}': of its "
            f"{len(without_effect)} matrices, {method.no_effect_reason}"
        )
    if not method.preserves_outputs or not names:
        raise ZooError(f"split: reparam '{kind}' cannot take over a model's weights; expected another")
    return names


def _logits(model: Model) -> Tensor:
    *inputs, _ = model.example()
    weight = next(model.parameters())
    placed = (t.to(weight.device, weight.dtype if t.is_floating_point() else t.dtype) for t in inputs)
    with evaluation_mode(model):
        logits: Tensor = model(*placed)
    return logits


def _compare(tensors: int, before: Tensor, after: Tensor) -> Conversion:
    return Conversion(tensors, (after - before).abs().max().item(), before.abs().max().item())
