"""The recipe of a model, from which the model is declared, reparameterised, allocated and initialised."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import SerializeAsAny
from torch import nn

from zoo.config.registry import Config, location, require_instance
from zoo.init import Init, initialise
from zoo.models import Model, ModelConfig
from zoo.reparam import Reparam
from zoo.spec import declared
from zoo.utils.errors import ConfigError, ZooError
from zoo.utils.sharded import is_sharded

Prepare = Callable[[Model], object]
"""A function that changes a model on the meta device before it is allocated: freezing, sharding."""


class Recipe(Config):
    """Architecture, initialisation and reparameterisation of a model; stored in every checkpoint."""

    model: SerializeAsAny[ModelConfig]
    init: SerializeAsAny[Init]
    reparam: SerializeAsAny[Reparam]


def assemble(
    recipe: Recipe,
    seed: int,
    device: str | torch.device = "cpu",
    prepare: Prepare | None = None,
    built: Model | None = None,
) -> Model:
    """Declare a model on the meta device, then allocate and initialise it.

    Args:
        recipe: the recipe.
        seed: seed of the initialisation.
        device: where the parameters live; "meta" stops before allocating.
        prepare: a function that is called with the declared model before it is allocated; if it shards the
            model, only the rank's own rows are in memory.
        built: the result of `build` for the recipe's model, which is then reparameterised; None: it is built.

    Returns:
        The model, with `recipe` as an attribute.

    Raises:
        ZooError: The device does not exist.
    """
    model = declare(recipe, built)
    if prepare is not None:
        prepare(model)
    device = torch.device(device)
    if device.type != "meta":
        materialise(model, device)
        initialise(model, recipe.init, seed)
    return model


def declare(recipe: Recipe, built: Model | None = None) -> Model:
    """Build the model of a recipe on the meta device, with all declarations and without memory.

    Args:
        recipe: the recipe.
        built: the result of `build` for the recipe's model, which is then reparameterised; None: it is built.

    Raises:
        ConfigError: The architecture builds something else than a model of declared parameters, or one in
            which a parameter has two names.
    """
    model = build(recipe.model) if built is None else built
    with torch.device("meta"):
        recipe.reparam.apply(model, recipe.init)
    model.recipe = recipe
    return model


def build(config: ModelConfig) -> Model:
    """Build an architecture on the meta device, without reparameterisation.

    Raises:
        ConfigError: The architecture does not build such a model, see `declare`.
    """
    with torch.device("meta"):
        model = config.build()
    _check(model, config)
    return model


def _check(model: Model, config: ModelConfig) -> None:
    require_instance(type(config), "build", model, Model)
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
    """Allocate the parameters of a model on the meta device, uninitialised.

    Raises:
        ZooError: The device does not exist.
    """
    try:
        # `to_empty`, but for plain tensors without `empty_like`, which imports sympy for tensors on "meta".
        model._apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
            lambda t: (
                torch.empty_like(t, device=device)
                if is_sharded(t)
                else torch.empty(t.shape, dtype=t.dtype, device=device)
            )
        )
    except (RuntimeError, AssertionError) as error:
        raise ZooError(f"device '{device}': {str(error).splitlines()[0]}") from error
