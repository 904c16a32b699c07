"""What a config can name: the registries and the shipped configs, with a line on each."""

from __future__ import annotations

import zoo.run.config  # noqa: F401  (imports everything that registers itself)
from zoo.config.compose import shipped
from zoo.config.registry import (
    CORPORA,
    DATASETS,
    INITS,
    MODELS,
    OBJECTIVES,
    OPTIMIZERS,
    REPARAMS,
    SCHEDULES,
    TOKENIZERS,
)
from zoo.data.instructions.template import TEMPLATES
from zoo.utils.errors import ConfigError, did_you_mean

KINDS = {
    "models": MODELS,
    "inits": INITS,
    "reparams": REPARAMS,
    "optimizers": OPTIMIZERS,
    "schedules": SCHEDULES,
    "data": DATASETS,
    "objectives": OBJECTIVES,
    "tokenizers": TOKENIZERS,
    "corpora": CORPORA,
    "templates": TEMPLATES,
}


def catalogue(kind: str | None = None) -> dict[str, dict[str, str]]:
    """Names and descriptions by kind.

    Args:
        kind: one kind, singular or plural; None: all.

    Raises:
        ConfigError: there is no such kind.
    """
    found = {plural: registry.describe() for plural, registry in KINDS.items()}
    found["configs"] = {name: _first_comment(file.read_text("utf-8")) for name, file in shipped().items()}
    if kind is None:
        return found
    singular = {registry.name: plural for plural, registry in KINDS.items()} | {"config": "configs"}
    plural = singular.get(kind, kind)
    if plural not in found:
        raise ConfigError(f"list: no kind called '{kind}'{did_you_mean(kind, found)}")
    return {plural: found[plural]}


def _first_comment(text: str) -> str:
    first = text.split("\n", 1)[0]
    return first.removeprefix("#").strip() if first[:1] == "#" else ""
