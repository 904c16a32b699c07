"""What tests of several files share."""

from collections.abc import Iterator

import pytest

from zoo.config import plugins
from zoo.config.registry import Kind


@pytest.fixture
def without_plugins() -> Iterator[None]:
    """The test begins and ends without plugins."""
    choices = {kind: dict(kind.choices) for kind in Kind.registries.values()}
    yield
    for kind, before in choices.items():
        kind.restore(before)
    plugins._named.clear()
    plugins.load_installed.cache_clear()
    plugins.allow_changed_plugins(False)
