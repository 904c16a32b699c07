"""From a recipe to a model, and from a model to its optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from pydantic import ValidationError
from torch import nn
from torch.optim import Optimizer

from zoo.config.messages import describe
from zoo.config.registry import MODELS, location
from zoo.config.yaml import Located
from zoo.init import EtaOverride, Registry
from zoo.init.transfer import Transfer
from zoo.models import Model
from zoo.optim.attach import attach
from zoo.optim.base import OptimizerConfig
from zoo.optim.foreign import config_class
from zoo.optim.hyperball import check_under_fixed_norm
from zoo.run.config import load_config
from zoo.run.conversion import merge, split
from zoo.run.first_weights import declared_model, initial_model, recipe_of
from zoo.run.located import located
from zoo.run.transfer import check_optimizer, rates_of
from zoo.spec import declared
from zoo.utils.errors import ConfigError
from zoo.utils.untyped import Json, JsonObject

__all__ = ["build_model", "build_optimizer", "merge", "recipe_of", "split"]


def build_model(
    source: str | Path | JsonObject,
    *,
    init: str | JsonObject | None = None,
    reparam: str | JsonObject | None = None,
    constraint: str | JsonObject | None = None,
    seed: int | None = None,
    device: str | torch.device | None = None,
    **fields: Json,
) -> Model:
    """Build and initialise a model.

    Args:
        source: a config file, the name of a shipped config, a config as a dict, or the name of an
            architecture (``zoo list models``), which `fields` then describe.
        init: initialisation, replacing the config's; by default the architecture's own.
        reparam: reparameterisation, replacing the config's.
        constraint: constraint on the parameters in training, replacing the config's.
        seed: seed of the initialisation, replacing the config's.
        device: where the parameters live; "meta" declares everything and allocates nothing. None: torch's
            default device, which is the CPU outside of ``with torch.device(...)``.
        **fields: fields of the model, replacing the config's.

    Returns:
        The model; float32, in training mode, with its `recipe` as an attribute.

    Raises:
        ConfigError: A name is unknown or misspelt, or a value is impossible.
    """
    if isinstance(source, str) and source in MODELS.choices:
        source = {"model": {"type": source, **fields}}
        fields = {}
    changes: JsonObject = {f"model.{k}": v for k, v in fields.items()}
    given = {"init": init, "reparam": reparam, "constraint": constraint, "seed": seed}
    changes |= {k: v for k, v in given.items() if v is not None}
    config = load_config(source, [f"{k}={json.dumps(v)}" for k, v in changes.items()])
    device = torch.get_default_device() if device is None else device
    with located(config, "model"):
        if torch.device(device).type == "meta":
            model = declared_model(config).model.to("meta")
        else:
            model = initial_model(config, device).model
        config.constraint.apply(model)
    return model


def build_optimizer(
    model: nn.Module,
    optimizer: str | JsonObject | OptimizerConfig | type[Optimizer],
    *,
    eta_overrides: Sequence[EtaOverride] = (),
    layer_decay: float = 1.0,
    measured: Mapping[str, float] | None = None,
    transfer: Transfer | None = None,
    steps: int | None = None,
    **fields: Json,
) -> Optimizer:
    """Build an optimizer for a zoo model and `attach` it.

    Args:
        model: A model of declared parameters, plain or sharded.
        optimizer: Its name (``zoo list optimizers``), a dict with `type`, its config, or any class of
            torch optimizers.
        eta_overrides: Other etas for some variables (Amos-*Scale).
        layer_decay: Smaller learning rates towards the input, see `Registry`.
        measured: Etas by name that replace the declared ones, see `zoo.init.measure`.
        transfer: The rule by which the settings were chosen at another size; None: there is none.
        steps: The number of steps of the run, for a rule that depends on it.
        **fields: Fields of the optimizer's config; of a class, arguments of its constructor.

    Returns:
        An optimizer whose groups come from the registry.

    Raises:
        ConfigError: The optimizer or a field is unknown or cannot be used, or an override, a layer decay
            or measured etas have no effect.
    """
    config = _optimizer_config(optimizer, fields)
    _check_declared(model)
    rates = None
    if transfer is not None:
        if not isinstance(model, Model):
            raise ConfigError(f"transfer: {type(model).__name__} is no model of zoo, whose axes have names")
        check_optimizer(transfer, config)
        rates = rates_of(model, transfer, config, steps)
    registry = Registry(model, None, eta_overrides, layer_decay, measured, rates)
    for i, override in enumerate(eta_overrides):
        if not any(override.matches(entry.spec) and config.reads_eta(entry.spec) for entry in registry):
            raise ConfigError(f"eta_overrides[{i}] has no effect: this optimizer reads no eta of its matches")
    if measured is not None and not any(e.name in measured and config.reads_eta(e.spec) for e in registry):
        raise ConfigError(
            "eta: measured has no effect: nothing trained whose eta is read came from the checkpoint"
        )
    if any(entry.spec.keeps_norm for entry in registry):
        check_under_fixed_norm(config)
    built = config.build(registry)
    if not isinstance(built, Optimizer):
        kind = type(built).__name__
        raise ConfigError(
            f"{location(type(config))}: build returned {kind}; expected a torch.optim.Optimizer"
        )
    attach(built, model)
    return built


def _check_declared(model: object) -> None:
    """Refuse an object that is no model of declared parameters, and name an alternative.

    Raises:
        ConfigError: It is no module, or its parameters are not declared.
    """
    others = "Amos.for_module(module, ...) for Amos, or a torch optimizer and zoo.attach"
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"build_optimizer: expected a model, got {type(model).__name__}; parameters alone do not say "
            f"what they are. For modules that are not zoo's: {others}"
        )
    try:
        list(declared(model))
    except ValueError as error:
        raise ConfigError(f"build_optimizer: {error}. For modules that are not zoo's: {others}") from error


def _optimizer_config(
    optimizer: str | JsonObject | OptimizerConfig | type[Optimizer], fields: JsonObject
) -> OptimizerConfig:
    """The configuration of an optimizer in any of the forms that `build_optimizer` takes."""
    if isinstance(optimizer, OptimizerConfig):
        if fields:
            raise ConfigError(f"optimizer: given as a config, and fields {sorted(fields)} besides")
        return optimizer
    if isinstance(optimizer, type):
        path = f"{optimizer.__module__}.{optimizer.__qualname__}"
        kind = config_class(optimizer, path)  # type: ignore[arg-type]  # torch leaves __hash__ untyped
        try:
            return kind(**fields)
        except ValidationError as error:
            lines = [describe(e, kind, Located.of(fields)) for e in error.errors()]
            raise ConfigError("\n".join(f"optimizer: {line}" for line in lines)) from error
    given = {"type": optimizer} if isinstance(optimizer, str) else optimizer
    config = load_config({"optimizer": {**given, **fields}}).optimizer
    return cast(OptimizerConfig, config)  # not None, because it was given
