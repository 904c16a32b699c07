"""What a model is made of, and the making: declare without memory, put gates in front, fill."""

from __future__ import annotations

import torch
from pydantic import SerializeAsAny
from torch import nn

from zoo.config.registry import Config, location
from zoo.init import Init, initialise
from zoo.models import Model, ModelConfig
from zoo.reparam import Reparam
from zoo.spec import declared
from zoo.utils.errors import ConfigError, ZooError


class Recipe(Config):
    """What a model was made from; stored with every checkpoint."""

    model: SerializeAsAny[ModelConfig]
    init: SerializeAsAny[Init]
    reparam: SerializeAsAny[Reparam]


def assemble(recipe: Recipe, seed: int, device: str | torch.device = "cpu") -> Model:
    """Declare a model without memory, put its gates in front, then allocate and fill it.

    Args:
        recipe: architecture, initialisation and reparameterisation.
        seed: seed of the initialisation.
        device: where the parameters live; "meta" stops before allocating.

    Returns:
        The model, with `recipe` as an attribute.

    Raises:
        ZooError: a device that is not there.
    """
    model = declare(recipe)
    device = torch.device(device)
    if device.type != "meta":
        materialise(model, device)
        initialise(model, recipe.init, seed)
    return model


def declare(recipe: Recipe) -> Model:
    """The model of a recipe on the meta device: all declarations, no memory.

    Raises:
        ConfigError: if what the architecture builds is not a model of declared parameters, each under one
            name.
    """
    with torch.device("meta"):
        model = recipe.model.build()
        _check(model, recipe.model)
        recipe.reparam.apply(model, recipe.init)
    model.recipe = recipe
    return model


def _check(model: object, config: ModelConfig) -> None:
    if not isinstance(model, Model):
        kind = type(model).__name__
        raise ConfigError(f"{location(type(config))}: build returned {kind}; expected a zoo.models.Model")
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter in names:
            raise ConfigError(
                f"{location(type(config))}: {names[parameter]} and {name} are the same parameter; expected "
                "each under one name (see zoo.models.base on how a tied head uses the embedding)"
            )
        names[parameter] = name
    try:
        list(declared(model))
    except ValueError as error:
        raise ConfigError(f"{location(type(config))}: {error}") from error


def materialise(model: nn.Module, device: torch.device) -> None:
    """Allocate the parameters of a model declared on meta, uninitialised.

    Raises:
        ZooError: a device that is not there.
    """
    try:
        model.to_empty(device=device)
    except (RuntimeError, AssertionError) as error:
        raise ZooError(f"device '{device}': {str(error).splitlines()[0]}") from error
