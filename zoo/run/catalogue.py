"""The catalogue of `zoo list`: all registered choices and shipped configs, with a line on each."""

from __future__ import annotations

from zoo.config.compose import shipped
from zoo.config.plugins import load_installed
from zoo.config.registry import Kind
from zoo.utils.errors import ConfigError, did_you_mean


def catalogue(kind: str | None = None) -> dict[str, dict[str, str]]:
    """Names and descriptions by kind.

    Args:
        kind: one kind, singular or plural; None: all.

    Raises:
        ConfigError: There is no such kind.
    """
    load_installed()
    lists = {plural: registry.describe() for plural, registry in Kind.registries.items()}
    lists["configs"] = {name: _first_comment(file.read_text("utf-8")) for name, file in shipped().items()}
    if kind is None:
        return lists
    plurals = {registry.name: plural for plural, registry in Kind.registries.items()} | {"config": "configs"}
    plural = plurals.get(kind, kind)
    if plural not in lists:
        raise ConfigError(f"list: no kind called '{kind}'{did_you_mean(kind, lists)}")
    return {plural: lists[plural]}


def origins(kind: str) -> dict[str, tuple[str, str]]:
    """Family and source of the choices of a kind, by name; empty if no choice has them.

    Args:
        kind: the plural, a key of `catalogue`.
    """
    modules = Kind.registries[kind].origins() if kind in Kind.registries else {}
    return modules if any(any(pair) for pair in modules.values()) else {}


def _first_comment(text: str) -> str:
    first = text.split("\n", 1)[0]
    return first.removeprefix("#").strip() if first[:1] == "#" else ""
