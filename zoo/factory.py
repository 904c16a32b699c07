"""From a recipe to a model, and from a model to its optimizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.config import load_config
from zoo.errors import ConfigError
from zoo.init import EtaOverride, Registry
from zoo.models import Model
from zoo.optim.base import OptimizerConfig
from zoo.optim.projection import attach_projection
from zoo.recipe import Recipe, assemble
from zoo.reparam import Conversion, NoReparam, Reparam, convert
from zoo.reparam.step import attach_measurements
from zoo.schema import INITS, MODELS


def build_model(
    source: str | Path | dict[str, Any],
    *,
    init: str | dict[str, Any] | None = None,
    reparam: str | dict[str, Any] | None = None,
    seed: int | None = None,
    device: str | torch.device = "cpu",
    **fields: Any,
) -> Model:
    """Build and initialise a model.

    Args:
        source: a config file, the name of a shipped config, a config as a dict, or the name of an
            architecture (``zoo list models``), which `fields` then describe.
        init: initialisation, replacing the config's; by default the architecture's own.
        reparam: reparameterisation, replacing the config's.
        seed: seed of the initialisation, replacing the config's.
        device: where the parameters live; "meta" declares everything and allocates nothing.
        **fields: fields of the model, replacing the config's.

    Returns:
        The model; float32, in training mode, with its `recipe` as an attribute.

    Raises:
        ConfigError: anything unknown, misspelt or impossible.
    """
    if isinstance(source, str) and source in MODELS.choices:
        source = {"model": {"type": source, **fields}}
        fields = {}
    changes: dict[str, Any] = {f"model.{k}": v for k, v in fields.items()}
    changes |= {k: v for k, v in (("init", init), ("reparam", reparam), ("seed", seed)) if v is not None}
    config = load_config(source, [f"{k}={json.dumps(v)}" for k, v in changes.items()])
    return assemble(recipe_of(config), config.seed, device)


def recipe_of(config: Any) -> Recipe:
    """The model's part of a run's config, with the architecture's own init where none is named.

    Args:
        config: a `zoo.config.RunConfig`.

    Raises:
        ConfigError: the config describes no model.
    """
    if config.model is None:
        raise ConfigError("model: missing; expected `model: {type: ..., ...}`")
    own_init = INITS[config.model.default_init]()
    return Recipe(model=config.model, init=config.init or own_init, reparam=config.reparam)


def build_optimizer(
    model: nn.Module,
    optimizer: str | dict[str, Any] | OptimizerConfig,
    *,
    eta_overrides: Sequence[EtaOverride] = (),
    **fields: Any,
) -> torch.optim.Optimizer:
    """Build an optimizer for a zoo model, with all that follows its steps attached.

    That is the projection onto spheres (`zoo.optim.projection`) and what reparameterisations measure
    (`zoo.reparam.step`).

    Args:
        model: a model of declared parameters, plain or sharded.
        optimizer: its name (``zoo list optimizers``), a dict with `type`, or its config.
        eta_overrides: other eta for some variables (Amos-*Scale).
        **fields: fields of the optimizer's config.

    Returns:
        A `torch.optim.Optimizer` whose groups come from the registry.

    Raises:
        ConfigError: an unknown optimizer or field, or an override that matches nothing.
    """
    if isinstance(optimizer, OptimizerConfig):
        config = optimizer
        if fields:
            raise ConfigError(f"optimizer: given as a config, and fields {sorted(fields)} besides")
    else:
        given = {"type": optimizer} if isinstance(optimizer, str) else optimizer
        wanted = load_config({"optimizer": {**given, **fields}}).optimizer
        assert wanted is not None
        config = wanted
    registry = Registry(model, eta_overrides=eta_overrides)
    for i, override in enumerate(eta_overrides):
        if not any(override.matches(entry.spec) and config.reads_eta(entry.spec) for entry in registry):
            raise ConfigError(f"eta_overrides[{i}] has no effect: this optimizer reads no eta of its matches")
    built = config.build(registry)
    attach_projection(built, registry)
    attach_measurements(built, model)
    return built


def merge(model: Model) -> Conversion:
    """Fold the reparameterisation into the weights, in place: a plain model that computes the same.

    Args:
        model: a zoo model.

    Returns:
        How many tensors were folded and the largest difference of a logit.
    """
    result = convert.merge(model)
    recipe = model.recipe
    model.recipe = recipe.model_copy(
        update={"reparam": NoReparam(), "init": recipe.init.folded(tied=recipe.model.tied)}
    )
    return result


def split(model: Model, reparam: str | dict[str, Any] | Reparam = "wesar", *, seed: int = 0) -> Conversion:
    """Turn a plain model into a reparameterised one that computes the same, in place.

    Args:
        model: a zoo model that is not reparameterised.
        reparam: `wesar`, `weight_norm`, `lora` or `residual`, or their fields as a dict.
        seed: seed of what is drawn (LoRA's A).

    Returns:
        How many tensors were split and the largest difference of a logit.

    Raises:
        ZooError: another method, a model that is reparameterised already, or a matrix of zeros.
    """
    if not isinstance(reparam, Reparam):
        reparam = load_config({"reparam": reparam}).reparam
    result = convert.split(model, reparam, model.recipe.init, seed)
    model.recipe = model.recipe.model_copy(update={"reparam": reparam})
    return result
