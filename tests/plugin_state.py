"""The plugins of this process, which are named and registered once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zoo.config import plugins
from zoo.config.registry import Kind


@contextmanager
def plugins_forgotten() -> Iterator[None]:
    """Forget at the end what was registered and named in the block.

    Workers and the processes that encode texts would otherwise import it in all later tests.
    """
    choices = {kind: dict(kind.choices) for kind in Kind.registries.values()}
    yield
    for kind, before in choices.items():
        kind.restore(before)
    plugins._named.clear()
    plugins.load_installed.cache_clear()
    plugins.allow_changed_plugins(False)
