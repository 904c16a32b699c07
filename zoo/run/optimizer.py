"""Building the optimizer of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import ValidationError
from torch import nn
from torch.optim import Optimizer

from zoo.config.messages import describe_all
from zoo.config.registry import location, require_instance
from zoo.config.yaml import Located
from zoo.init import EtaOverride, Registry
from zoo.init.transfer import Transfer
from zoo.models import Model
from zoo.optim.attach import attach
from zoo.optim.averages import check_statistics
from zoo.optim.base import OptimizerConfig
from zoo.optim.foreign import config_class
from zoo.optim.hyperball import check_under_fixed_norm
from zoo.run.config import load_config
from zoo.run.transfer import check_optimizer, rates_of
from zoo.spec import declared
from zoo.utils.errors import ConfigError
from zoo.utils.untyped import Json, JsonObject


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
        ConfigError: The optimizer or a field is unknown or cannot be used for the model, or an override, a
            layer decay or measured etas have no effect.
    """
    config = _optimizer_config(optimizer, fields)
    _check_declared(model)
    for i, override in enumerate(eta_overrides):
        if not isinstance(override, EtaOverride):
            raise ConfigError(
                f"eta_overrides[{i}]: value {override!r}: expected an override, such as "
                "zoo.init.EtaOverride(role='linear', factor=2)"
            )
    rates = None
    if transfer is not None:
        if not isinstance(transfer, Transfer):
            raise ConfigError(
                f"transfer: value {transfer!r}: expected a rule, such as zoo.TRANSFERS['mup'](base=...)"
            )
        if not isinstance(model, Model):
            raise ConfigError(f"transfer: {type(model).__name__} is no model of zoo, whose axes have names")
        check_optimizer(transfer, config)
        rates = rates_of(model, transfer, config, steps)
    registry = Registry(model, None, eta_overrides, layer_decay, measured, rates)
    built = optimizer_of(config, registry, eta_overrides, measured)
    check_statistics(built, model)
    attach(built, model)
    return built


def optimizer_of(
    config: OptimizerConfig,
    registry: Registry,
    eta_overrides: Sequence[EtaOverride],
    measured: Mapping[str, float] | None,
) -> Optimizer:
    """Build the optimizer of the trained parameters of a model.

    Args:
        config: The settings of the optimizer.
        registry: The parameters, with their etas and rates.
        eta_overrides: The overrides that the registry was made with.
        measured: The measured etas that the registry was made with.

    Raises:
        ConfigError: The optimizer cannot train such parameters, or an override or measured etas have no
            effect on it.
    """
    for i in range(len(eta_overrides)):
        if not any(entry.override == i and config.reads_eta(entry.spec) for entry in registry):
            raise ConfigError(f"eta_overrides[{i}] has no effect: this optimizer reads no eta of its matches")
    if measured is not None and not any(e.name in measured and config.reads_eta(e.spec) for e in registry):
        raise ConfigError(
            "eta: measured has no effect: nothing trained whose eta is read came from the checkpoint"
        )
    if any(entry.spec.keeps_norm for entry in registry):
        check_under_fixed_norm(config)
    config.require_trainable()
    built = require_instance(type(config), "build", config.build(registry), Optimizer)
    if any("param_names" not in group for group in built.param_groups):
        raise ConfigError(
            f"{location(type(config))}: build returned an optimizer that does not know the names of its "
            "parameters; expected groups of pairs (entry.name, entry.parameter), such as those of "
            "zoo.optim.base.grouped"
        )
    return built


def _check_declared(model: object) -> None:
    """Refuse an object that is no model of declared parameters, and name an alternative.

    Raises:
        ConfigError: The object is no module, or its parameters are not declared.
    """
    others = (
        "Amos.for_module(module, ...), or the class of another optimizer, such as zoo.optim.muon.Muon or one "
        "of torch, with their parameters, and zoo.attach if some modules within are zoo's"
    )
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
            lines = describe_all(error.errors(), kind, Located.of(fields))
            raise ConfigError("\n".join(f"optimizer: {line}" for line in lines)) from error
    if not isinstance(optimizer, str | dict):
        raise ConfigError(
            f"optimizer: got {type(optimizer).__name__}; expected its name, a dict with `type`, its config "
            "or a class; one that is built already is given to zoo.attach"
        )
    given = {"type": optimizer} if isinstance(optimizer, str) else optimizer
    config = load_config({"optimizer": {**given, **fields}}).optimizer
    return cast(OptimizerConfig, config)  # not None, because it was given
