"""The transfer rule of a run, applied to the initialisation of its model and the rates of its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from zoo.checkpoint.recipe import Recipe, build
from zoo.config.registry import type_of
from zoo.init.transfer import Factors, NoTransfer, Sizes, Transfer, Transferred
from zoo.models import Model
from zoo.optim.base import OptimizerConfig
from zoo.spec import Declared, ParamSpec, declared
from zoo.utils.errors import ConfigError


def sizes_of(model: Model, transfer: Transfer, steps: int | None) -> Sizes:
    """The ratios of the sizes of a model and its run to the base size; see `Transfer.sizes`."""
    return transfer.sizes(list(declared(model)), model.depth, steps)


@dataclass(frozen=True)
class UnderRule:
    """The recipes of a model under a rule.

    Attributes:
        recorded: the recipe that checkpoints record.
        start: the recipe by which the model is declared and initialised. It differs from `recorded` only in
            the initialisation, because a checkpoint holds the weights and the factors of all gates.
        built: the model of `start` on the meta device, not reparameterised; None: it is not built yet.
    """

    recorded: Recipe
    start: Recipe
    built: Model | None = None


def under_rule(recipe: Recipe, transfer: Transfer) -> UnderRule:
    """The recipes of a model under a rule.

    Args:
        recipe: the recipe that the configuration describes.
        transfer: the rule.

    Raises:
        ConfigError: The rule does not cover such a model, or its base size does not fit the model.
    """
    if not transfer.of_sizes:
        return UnderRule(recipe, recipe)
    model = build(recipe.model)
    _check(recipe, model, transfer)
    sizes = sizes_of(model, transfer, None)
    if transfer.on_sphere:
        scaled = recipe.model.transferred(transfer.base["embed"], sizes.depth)
        recipe = recipe.model_copy(update={"model": scaled})
        return UnderRule(recipe, recipe)
    init = Transferred(init=recipe.init, transfer=transfer, ratios=sizes)
    return UnderRule(recipe, recipe.model_copy(update={"init": init}), model)


def _check(recipe: Recipe, model: Model, transfer: Transfer) -> None:
    """Refuse models and reparameterisations that the rule does not cover."""
    specs = [p.spec for p in declared(model)]
    rule = f"transfer: {type_of(transfer)}"
    if transfer.on_sphere != any(spec.sphere is not None for spec in specs):
        kind = "with matrices on the sphere" if transfer.on_sphere else "without matrices on a sphere"
        raise ConfigError(f"{rule} is about models {kind}, and '{type_of(recipe.model)}' is not one")
    if transfer.on_sphere and any(spec.tied for spec in specs):
        raise ConfigError(
            f"{rule} has other rates for the embedding than for the read-out, which are one tensor; "
            "expected model.tied: false"
        )
    if transfer.branches and not any(spec.residual_branches > 1 for spec in specs):
        raise ConfigError(f"{rule}: '{type_of(recipe.model)}' declares no ends of residual branches")
    if transfer.branches and any(_is_normalised_end(spec) for spec in specs):
        raise ConfigError(
            f"{rule} has a factor at the end of every residual branch, and '{type_of(recipe.model)}' "
            "normalises the output of a branch next, which cancels it; expected branches without a norm "
            "behind them (norms: before)"
        )
    reparam = recipe.reparam
    fits = reparam.common_std is not None and not (transfer.on_sphere and reparam.common_std)
    if not fits or (transfer.branches and reparam.scales_branches):
        raise ConfigError(f"{rule} says nothing of reparam '{type_of(reparam)}'")


def _is_normalised_end(spec: ParamSpec) -> bool:
    """Return whether a norm cancels every factor at the end of a residual branch."""
    return spec.residual_branches > 1 and spec.normalised and spec.sphere is None


def check_optimizer(transfer: Transfer, optimizer: OptimizerConfig) -> None:
    """Refuse an optimizer to which the rule does not apply.

    Raises:
        ConfigError: The rule does not cover the optimizer, or has no weight decay although the optimizer
            does.
    """
    rule = f"transfer: {type_of(transfer)}"
    if transfer.wd_transfer != "rule" and (reason := _without_decay(optimizer)):
        raise ConfigError(f"transfer.wd_transfer: value '{transfer.wd_transfer}' has no effect: {reason}")
    if not transfer.of_sizes:
        return
    if optimizer.update_size != transfer.update_size:
        expected = {
            "entry": "one whose updates have entries of the size of the learning rate (adam, adamw)",
            "spectral": "one whose updates of whole matrices are orthogonal (muon or normuon with adjust: "
            "shape or spectral; split_heads: false)",
        }
        raise ConfigError(
            f"{rule} says nothing of the optimizer '{type_of(optimizer)}'; expected "
            f"{expected[transfer.update_size]}"
        )
    if transfer.on_sphere and transfer.wd_transfer != "rule":
        raise ConfigError(f"{rule} has no weight decay, so that transfer.wd_transfer has no effect")
    if transfer.on_sphere and optimizer.model_dump().get("weight_decay"):
        raise ConfigError(f"{rule} has no weight decay; expected optimizer.weight_decay: 0")


def _without_decay(optimizer: OptimizerConfig) -> str:
    """The reason for which an optimizer has no weight decay that a rule could change; empty if it has one."""
    fields = optimizer.model_dump()
    if "weight_decay" not in fields:
        return f"the optimizer '{type_of(optimizer)}' has no weight_decay; expected rule"
    if fields["weight_decay"] is None:
        return "the weight decay is the default of the optimizer's class; expected optimizer.weight_decay"
    # A decay of 0 that is written may be one of the values of a sweep.
    if fields["weight_decay"] == 0 and "weight_decay" not in optimizer.model_fields_set:
        return "optimizer.weight_decay is 0; expected a weight decay, or rule"
    return ""


def rates_of(
    model: Model, transfer: Transfer, optimizer: OptimizerConfig | None, steps: int | None
) -> Callable[[Declared], Factors] | None:
    """The factors of the learning rate, decay and eps of each trained tensor of a model.

    A rule is about the tensors with which a layer computes. If a gate carries their scale and the trained
    matrix has one standard deviation at all sizes, as in WeSaR, the factors of the trained matrix are the
    rule's divided by the gate's, and the rate of the gate is multiplied by the factor of its start (our
    choice; no source covers it). Under a rule, a tied table has a fixed gate, the factor on its logits, and
    is trained at the rate of an embedding.

    If the optimizer itself multiplies rates by a factor of a matrix' shape, the growth of this factor is
    divided out of the rule's factor, and the learning rate times the decay stays the rule's.

    Args:
        model: a declared model.
        transfer: the rule.
        optimizer: the optimizer of the model; None: it is not known, and has no factor of the shape.
        steps: number of steps of the run; None: it is not known.

    Returns:
        A function of a declared tensor, or None if the rule changes nothing.

    Raises:
        ConfigError: The rule does not cover such a model, for instance because the norms of its matrices are
            kept, or the model comes from a checkpoint without the rule's factor on its logits.
    """
    if isinstance(transfer, NoTransfer):
        return None
    if not transfer.of_sizes:
        alike = sizes_of(model, transfer, steps)
        return lambda p: transfer.at(p.spec, False, alike)
    if not transfer.on_sphere and any(p.spec.keeps_norm for p in declared(model)):
        raise ConfigError(
            f"transfer: {type_of(transfer)} says nothing of matrices whose norm is kept (constraint)"
        )
    _check(model.recipe, model, transfer)
    sizes, n_layers = sizes_of(model, transfer, steps), len(model.layers)
    common = model.recipe.reparam.common_std
    for p in declared(model) if not common else ():
        wanted = transfer.at(p.spec, False, sizes).start if p.spec.tied else p.spec.scale
        if not math.isclose(p.spec.scale, wanted, rel_tol=1e-6):
            raise ConfigError(
                f"transfer: {type_of(transfer)} wants the logits of the tied table {p.name} times "
                f"{wanted:g}, and the checkpoint has them times {p.spec.scale:g}; expected a checkpoint "
                "that was trained under the rule"
            )

    def rates(p: Declared) -> Factors:
        in_block = 1 <= p.depth <= n_layers
        for name, reparameterisation in p.module.reparameterised.items():
            spec = p.module.specs[name]
            start = transfer.at(spec, in_block, sizes).start if common or spec.tied else 1.0
            if p.local in reparameterisation.added:
                return Factors(lr=start * transfer.of_length(steps))
            if p.local == name:
                return at(p.spec, in_block).of_a_product(1 / start)
        return at(p.spec, in_block)

    def at(spec: ParamSpec, in_block: bool) -> Factors:
        factors = transfer.at(spec, in_block, sizes)
        if optimizer is None:
            return factors
        shape_ratio = optimizer.shape_factor(spec) / optimizer.shape_factor(transfer.at_base(spec))
        return replace(factors, lr=factors.lr / shape_ratio, wd=factors.wd * shape_ratio)

    return rates
