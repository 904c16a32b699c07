"""Models on the meta device that are declared once for all configurations that have them.

A sweep has hundreds of configurations and a handful of models, whose declaration takes up to half a second.
"""

from __future__ import annotations

import json

from zoo.checkpoint.recipe import declare
from zoo.init import freeze
from zoo.models import Model
from zoo.run.config import RunConfig, plain
from zoo.run.first_weights import recipe_of

PARTS = ("model", "init", "reparam", "freeze")
"""The parts of a configuration that a declared model depends on."""

_declared: dict[str, Model] = {}
"""The models, by these parts as JSON."""


def declared_once(config: RunConfig) -> Model:
    """The model of a configuration, with its frozen parameters; to be read, as other configurations share it.

    Args:
        config: a configuration with a model.

    Raises:
        ConfigError: The configuration describes no model, or a rule of `freeze` matches nothing.
    """
    parts = {part: getattr(config, part) for part in PARTS}
    key = json.dumps(plain({part: value for part, value in parts.items() if value is not None}))
    if key not in _declared:
        model = declare(recipe_of(config))
        freeze(model, config.freeze)
        _declared[key] = model
    return _declared[key]
