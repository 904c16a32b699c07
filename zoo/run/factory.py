"""Building a model from its recipe."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from zoo.config.compose import find_config
from zoo.config.registry import MODELS
from zoo.models import Model
from zoo.run.config import load_config, plain
from zoo.run.conversion import merge, split
from zoo.run.first_weights import declared_model, initial_model, recipe_of
from zoo.run.located import located
from zoo.utils.untyped import Json, JsonObject

__all__ = ["build_model", "merge", "recipe_of", "split"]


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
    if isinstance(source, str):
        if source in MODELS.choices:
            source, fields = {"model": {"type": source, **fields}}, {}
        else:
            source = find_config(source, architectures=MODELS.choices)
    changes: JsonObject = {f"model.{k}": v for k, v in fields.items()}
    given = {"init": init, "reparam": reparam, "constraint": constraint, "seed": seed}
    changes |= {k: v for k, v in given.items() if v is not None}
    config = load_config(source, [f"{k}={json.dumps(plain(v, k))}" for k, v in changes.items()])
    device = torch.get_default_device() if device is None else device
    with located(config, "model"):
        if torch.device(device).type == "meta":
            model = declared_model(config).model.to("meta")
        else:
            model = initial_model(config, device).model
        config.constraint.apply(model)
    return model
