"""The configuration that `zoo explain` describes: one that is written somewhere, or that of a model."""

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
    """Read a configuration, or make one whose first weights are those of a model.

    A checkpoint of a run is described with the rest of the configuration that it was trained with: its
    optimizer, what is frozen.

    Args:
        source: what `load_config` reads, or a checkpoint, a .safetensors file or a folder as on the hub.
        overrides: ``a.b=c``, see `load_config`.

    Raises:
        ConfigError: there are problems; the message has one line for each.
    """
    path = Path(source)
    if not holds_model(path):
        return load_config(source, overrides)
    kept = CheckpointFolder(path).config
    if not kept.is_file():
        return load_config({"model": {FROM: str(path)}}, overrides)
    config = load_config(kept, overrides)
    changes: dict[str, object] = {"checkpoint": CheckpointConfig(path=path)}
    if config.checkpoint is None:  # what a rule of transfer changes is in the checkpoint already
        changes |= dict(under_rule(recipe_of(config), config.transfer).recorded)
    return config.model_copy(update=changes)
