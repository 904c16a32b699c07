"""The id of a run: readable words, and a hash of all settings that its result depends on."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from zoo.config.inputs import READS_FILES
from zoo.config.registry import Config
from zoo.run.config import RunConfig, plain

WITHOUT_EFFECT = frozenset(
    {
        "name",
        "description",
        "metric",
        "train.runs_dir",
        "train.checkpoint_every",
        "train.keep_last",
        "train.loggers",
    }
)
"""Keys that change no number in metrics.jsonl."""

ROLLBACK_KEYS = frozenset({"metric", "train.checkpoint_every", "train.keep_last"})
"""Those of these keys that have an effect if the run rolls back after spikes."""

PLACES = frozenset({"data.cache_dir"})
"""Keys that change no number either, but are part of the ids of runs."""

HASH_LENGTH = 10
"""Number of hexadecimal digits; with 40 bits, one in two million sweeps of 1000 runs has a collision."""


def run_id(config: RunConfig) -> str:
    """The id of a run, which is also the name of its folder.

    Args:
        config: the configuration, complete except for the name.
    """
    parts = [config.model, config.init, config.reparam, config.optimizer]
    types = [getattr(part, "type", "none") for part in parts if part is not None]
    words = [re.sub(r"[^\w.-]", "-", word) for word in types if word != "none"]
    return "-".join([*words, f"s{config.seed}", digest(effective_settings(config))[:HASH_LENGTH]])


def effective_settings(config: Config, prefix: str = "", portable: bool = False) -> dict[str, object]:
    """The settings that a result depends on, as plain data.

    Defaults are left out, so that ids stay the same when zoo gets new keys.

    Args:
        config: the configuration, or a part of it.
        prefix: the key of the part, with a dot at its end.
        portable: whether only the names of files count, and not their folders.
    """
    rolls_back = getattr(getattr(config, "spikes", None), "action", None) == "rollback"
    ignored = WITHOUT_EFFECT - ROLLBACK_KEYS if rolls_back else WITHOUT_EFFECT
    ignored |= PLACES if portable else frozenset()
    settings = {}
    for key, field in type(config).model_fields.items():
        value = getattr(config, key)
        # `get_default` would copy a default that is only looked at here, for hundreds of runs.
        default = field.get_default(call_default_factory=True) if field.default_factory else field.default
        is_default = key != "type" and value == default
        if not is_default and f"{prefix}{key}" not in ignored:
            name = portable and READS_FILES in field.metadata
            settings[key] = _file_names(value) if name else _plain(value, f"{prefix}{key}.", portable)
    return settings


def portable_settings(config: Config) -> dict[str, object]:
    """The `effective_settings` in a form that does not depend on the paths of a machine."""
    return effective_settings(config, portable=True)


def _file_names(value: object) -> object:
    """Return paths without their folders."""
    if isinstance(value, dict):
        return {key: _file_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_file_names(item) for item in value]
    return Path(value).name if isinstance(value, str | Path) else plain(value)


def digest(value: object) -> str:
    """The SHA-256 of plain data, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _plain(value: object, prefix: str, portable: bool) -> object:
    if isinstance(value, Config):
        return effective_settings(value, prefix, portable)
    if isinstance(value, dict):
        return {key: _plain(item, f"{prefix}{key}.", portable) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, prefix, portable) for item in value]
    return plain(value) if isinstance(value, str | int | float | bool | None) else str(value)
