"""Values of `eta` and `reduce` that a user states for some parameters of any module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from torch import nn

from zoo.init.registry import Entry
from zoo.utils.errors import ConfigError, did_you_mean
from zoo.utils.untyped import Json, Kwargs

Key = str | type[nn.Module]
"""A pattern of full names, or a class of modules, for the parameters that such modules own themselves."""

Overrides = Mapping[Key, Mapping[str, Json]]
"""Mappings with `eta`, `reduce` or both. They come from the user, and `override` checks them."""

KNOWN = ("eta", "reduce")


@dataclass
class Inferred:
    """A parameter, which several modules may share, and its entry.

    Attributes:
        entry: its entry.
        guessed: whether no rule says what the parameter is.
        names: all its full names.
        owners: the modules that own it.
    """

    entry: Entry
    guessed: bool
    names: list[str] = field(default_factory=list)
    owners: list[nn.Module] = field(default_factory=list)


def override(parameters: Sequence[Inferred], overrides: Overrides, model: str) -> None:
    """Replace the entries of the parameters that overrides match; these entries no longer count as guessed.

    Args:
        parameters: all parameters of the model; changed in place.
        overrides: `eta`, `reduce` or both, for the parameters that each key matches, see `Overrides`.
        model: name of the model, for messages.

    Raises:
        ConfigError: An override is malformed or matches nothing, or two overrides match one parameter.
    """
    unmatched = list(overrides)
    for key in overrides:
        if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, nn.Module)):
            raise ConfigError(f"overrides[{key!r}]: expected a pattern of names or a class of modules")
    for parameter in parameters:
        matching = [key for key in overrides if _matches(key, parameter)]
        if len(matching) > 1:
            keys = ", ".join(map(_shown, matching))
            raise ConfigError(f"overrides {keys} all match {parameter.names[0]}: expected at most one")
        for key in matching:
            unmatched = [other for other in unmatched if other != key]
            changes = _changes(key, overrides[key], parameter.entry)
            parameter.entry, parameter.guessed = replace(parameter.entry, **changes), False
    for key in unmatched:
        names = [name for parameter in parameters for name in parameter.names]
        classes = {type(owner).__name__ for parameter in parameters for owner in parameter.owners}
        near = did_you_mean(key, names) if isinstance(key, str) else did_you_mean(key.__name__, classes)
        raise ConfigError(f"overrides[{_shown(key)}] matches no parameter of {model}{near}")


def _matches(key: Key, parameter: Inferred) -> bool:
    if isinstance(key, str):
        return any(fnmatchcase(name, key) for name in parameter.names)
    return any(isinstance(owner, key) for owner in parameter.owners)


def _changes(key: Key, values: Mapping[str, Json], entry: Entry) -> Kwargs:
    """Check an override and return the fields of `Entry` that it replaces."""
    place = f"overrides[{_shown(key)}]"
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"{place} is {values!r}, expected a mapping with `eta`, `reduce` or both")
    for word in values:
        if word not in KNOWN:
            raise ConfigError(f"{place}: unknown key '{word}'{did_you_mean(str(word), KNOWN)}")
    eta = values.get("eta", 1.0)
    if isinstance(eta, bool) or not isinstance(eta, int | float) or not 0 < eta < math.inf:
        raise ConfigError(f"{place}: eta is {eta!r}, expected a finite number > 0")
    dims, n = values.get("reduce", ()), len(entry.spec.shape)
    if (
        not isinstance(dims, tuple)
        or not all(type(d) is int and -n <= d < n for d in dims)
        or len({d % n for d in dims}) < len(dims)
    ):
        raise ConfigError(
            f"{place}: reduce is {dims!r}, expected a tuple of dimensions of {entry.name} {entry.spec.shape}"
        )
    changes: Kwargs = {"eta": float(eta)} if "eta" in values else {}
    return changes | ({"reduced": tuple(sorted(d % n for d in dims))} if "reduce" in values else {})


def _shown(key: Key) -> str:
    return repr(key) if isinstance(key, str) else key.__name__
