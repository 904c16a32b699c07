"""The README.md of an exported folder: what the model is, what was measured of it, and how it was made."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from zoo.config.yaml import dump_yaml
from zoo.run.config import load_config
from zoo.utils.run_folder import CheckpointFolder, RunFolder, model_folder

PLACES = ("runs_dir", "cache_dir", "plugins")
"""Settings of the machine, which say nothing of the model."""


def model_card(source: Path, *, architecture: str, parameters: int, dtype: str, comparison: str) -> str:
    """Write the text of a README.md.

    Args:
        source: a run, one of its checkpoints, or any other model.
        architecture: the class of transformers.
        parameters: number of parameters.
        dtype: of the tensors in the files.
        comparison: a sentence on how the logits were compared.
    """
    folder = model_folder(source)
    recipe = None
    if folder.config.is_file():
        recipe = dump_yaml(_portable(load_config(folder.config).model_dump(mode="json")))
    checkpoint = folder.checkpoint() if isinstance(folder, RunFolder) else folder
    run = checkpoint.run if isinstance(checkpoint, CheckpointFolder) else None
    results: dict[str, float] = {}
    step = 0
    if run is not None and isinstance(checkpoint, CheckpointFolder):
        step = checkpoint.step
        for record in run.read_metrics() if run.metrics.is_file() else ():
            if record["kind"] == "validation" and record["step"] == step:
                results = {k: v for k, v in record.items() if isinstance(v, float)}
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_suffix(".md").read_text(encoding="utf-8"))
    return template.render(
        name=(run or folder).path.resolve().name,
        architecture=architecture,
        parameters=parameters,
        dtype=dtype,
        version=version("zoo"),
        comparison=comparison,
        results=results,
        step=step,
        recipe=recipe,
    )


def _portable(value: Any, key: str = "") -> Any:  # Any: the plain data of a configuration
    """A configuration without settings of the machine, and with the last part of each absolute path."""
    if isinstance(value, dict):
        return {k: _portable(v, k) for k, v in value.items() if k not in PLACES and v is not None}
    if isinstance(value, list):
        return [_portable(item, key) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
