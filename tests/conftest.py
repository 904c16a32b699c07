"""What tests of several files share."""

from collections.abc import Iterator

import pytest
import torch
from plugin_state import plugins_forgotten


@pytest.fixture
def without_plugins() -> Iterator[None]:
    """The test begins and ends without plugins."""
    with plugins_forgotten():
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    if any(item.get_closest_marker("gpu") for item in items) and not torch.cuda.is_available():
        left_out = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
