"""What tests of several files share."""

from collections.abc import Iterator

import pytest
import torch

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


@pytest.fixture(autouse=True, scope="module")
def _plugins_of_a_file() -> Iterator[None]:
    """What the tests of a file have named as plugins is not imported by the processes of other files."""
    named = dict(plugins._named)
    yield
    plugins._named.clear()
    plugins._named.update(named)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    if any(item.get_closest_marker("gpu") for item in items) and not torch.cuda.is_available():
        left_out = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
