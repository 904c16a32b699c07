"""A run's id: readable words and a hash of everything in its configuration that its result depends on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from zoo.config.registry import Config
from zoo.run.config import RunConfig, plain

WITHOUT_EFFECT = frozenset(
    {"name", "train.runs_dir", "train.checkpoint_every", "train.keep_last", "train.loggers"}
)
"""Keys that change no number that a run writes down."""

DECIDES_ROLLBACK = frozenset({"train.checkpoint_every", "train.keep_last"})
"""Where a rollback goes back to: of effect in runs that do."""

LETTERS = 10
"""Of the hash: 40 bits, so that a thousand runs have the same by chance once in two million times."""


def run_id(config: RunConfig) -> str:
    """The id of a run, which is also the name of its folder.

    Args:
        config: complete; its name is of no account.
    """
    parts = [config.model, config.init, config.reparam, config.optimizer]
    types = [getattr(part, "type", "none") for part in parts if part is not None]
    words = [word for word in types if word != "none"]
    return "-".join([*words, f"s{config.seed}", digest(essence(config))[:LETTERS]])


def essence(config: Config, above: str = "") -> dict[str, Any]:
    """What a result depends on, as plain data: every key that has an effect and is not at its default.

    Defaults are left out so that ids survive new keys.
    """
    idle = WITHOUT_EFFECT - (DECIDES_ROLLBACK if _rolls_back(config) else frozenset())
    found = {}
    for key, field in type(config).model_fields.items():
        value = getattr(config, key)
        usual = key != "type" and value == field.get_default(call_default_factory=True)
        if not usual and f"{above}{key}" not in idle:
            found[key] = _inside(value, f"{above}{key}.")
    return found


def digest(value: Any) -> str:
    """SHA-256 of plain data, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _rolls_back(config: Config) -> bool:
    return getattr(getattr(config, "spikes", None), "action", None) == "rollback"


def _inside(value: Any, above: str) -> Any:
    if isinstance(value, Config):
        return essence(value, above)
    if isinstance(value, dict):
        return {key: _inside(item, f"{above}{key}.") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_inside(item, above) for item in value]
    return plain(value) if isinstance(value, str | int | float | bool | None) else str(value)
