"""Names of a package that are imported when they are first used, so that importing it is fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(package: str, names_of: Mapping[str, str]) -> tuple[list[str], Callable[[str], object]]:
    """Make the objects by which a package imports its public names lazily (PEP 562).

    Args:
        package: the name of the package.
        names_of: the names of each module, separated by spaces.

    Returns:
        The names, and a function for the package's ``__getattr__``.
    """
    home = {name: module for module, names in names_of.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(home[name]), name)

    return [*home], load
