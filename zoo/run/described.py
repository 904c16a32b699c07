"""The configuration that `zoo explain` describes: that of a file or a run, or one made from a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.checkpoint.formats import holds_model
from zoo.config.compose import FROM
from zoo.run.config import RunConfig, load_config
from zoo.run.first_weights import recipe_of
from zoo.run.from_checkpoint import CheckpointConfig
from zoo.run.transfer import under_rule
from zoo.utils.run_folder import CheckpointFolder


def load_described(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration, or make one that starts from the weights of a model.

    The checkpoint of a run is described with the rest of the configuration by which it was trained, such as
    its optimizer and its frozen parameters.

    Args:
        source: a source of `load_config`, or a checkpoint, a .safetensors file or a folder as on the hub.
        overrides: ``a.b=c``, see `load_config`.

    Raises:
        ConfigError: The configuration has problems; the message has one line for each.
    """
    path = Path(source)
    if not holds_model(path):
        return load_config(source, overrides)
    kept = CheckpointFolder(path).config
    if not kept.is_file():
        return load_config({"model": {FROM: str(path)}}, overrides)
    config = load_config(kept, overrides)
    changes: dict[str, object] = {"checkpoint": CheckpointConfig(path=path)}
    if config.checkpoint is None:  # the changes of a transfer rule are in the checkpoint already
        changes |= dict(under_rule(recipe_of(config), config.transfer).recorded)
    return config.model_copy(update=changes)
