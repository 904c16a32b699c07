"""Names of a package that are loaded when they are first used, so that importing it costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(package: str, names_of: Mapping[str, str]) -> tuple[list[str], Callable[[str], object]]:
    """Make what a package needs to load its public names late (PEP 562).

    Args:
        package: its name.
        names_of: the names, separated by spaces, that each module gives.

    Returns:
        The names, and the package's ``__getattr__``.
    """
    home = {name: module for module, names in names_of.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(home[name]), name)

    return [*home], load
