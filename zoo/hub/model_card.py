"""The README.md of an exported folder: the model, its measurements, and its training."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from zoo.config.yaml import dump_yaml
from zoo.run.config import RunConfig, load_config
from zoo.utils.errors import ZooError
from zoo.utils.files import JSON_BYTES, read_json
from zoo.utils.printable import printable
from zoo.utils.run_folder import CheckpointFolder, RunFolder, model_folder
from zoo.utils.untyped import Json, JsonObject

PLACES = ("runs_dir", "cache_dir", "plugins")
"""Settings of the machine, which are not properties of the model."""


def model_card(
    source: Path,
    *,
    architecture: str,
    parameters: int,
    dtype: str,
    comparison: str,
    adapter: str | None = None,
) -> str:
    """Write the text of a README.md.

    Args:
        source: a run, one of its checkpoints, or any other model.
        architecture: name of the class of transformers.
        parameters: number of parameters.
        dtype: dtype of the tensors in the files.
        comparison: a sentence on the comparison of the logits.
        adapter: the folder of the adapter that peft opens; None: there is none.
    """
    folder = model_folder(source)
    recipe = data = base = None
    if folder.config.is_file():
        config = load_config(folder.config)
        settings = _portable(config.model_dump(mode="json"))
        data = dump_yaml({"data": settings.pop("data")}) if "data" in settings else None
        recipe = dump_yaml(settings)
        base = base_name(config)
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
    environment.filters |= {"fenced": _fenced, "inert": _inert}
    template = environment.from_string(Path(__file__).with_suffix(".md").read_text(encoding="utf-8"))
    return template.render(
        name=(run or folder).path.resolve().name,
        architecture=architecture,
        parameters=parameters,
        dtype=dtype,
        version=version("zoo"),
        comparison=comparison,
        adapter=adapter,
        results=results,
        step=step,
        recipe=recipe,
        data=data,
        base=base,
        tasks=_tasks(folder) if isinstance(folder, RunFolder) else [],
    )


def _inert(text: str) -> str:
    """A name escaped for Markdown: it contains no HTML, and ends neither code nor a cell of a table."""
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return shown.replace("|", "\\|").replace("`", "'").replace("\n", " ")


def _fenced(text: str) -> str:
    """YAML between fences that are longer than all runs of backquotes in it, which would close it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}yaml\n{text}{fence}"


def base_name(config: RunConfig) -> str | None:
    """The name of the run or folder that a run started from; None if it started with random weights."""
    if config.checkpoint is None:
        return None
    path = config.checkpoint.path
    run = CheckpointFolder(path).run
    return (path if run is None else run.path).name


def _tasks(run: RunFolder) -> list[JsonObject]:
    """The scores that `zoo eval RUN --tasks` has written into a run."""
    if not run.tasks.is_file():
        return []
    content: Json = read_json(run.tasks, JSON_BYTES, ZooError)
    try:
        return [_task(score) for score in content["scores"] if isinstance(score["value"], float)]
    except (KeyError, TypeError, ValueError) as error:
        raise ZooError(f"{run.tasks}: is not as `zoo eval --tasks` wrote it: {error!r}") from error


def _task(score: JsonObject) -> JsonObject:
    """A score as a row of the table."""
    error = score["stderr"]
    return {
        "task": str(score["task"]),
        "metric": str(score["metric"]),
        "documents": "" if score["documents"] is None else int(score["documents"]),
        "value": score["value"],
        "stderr": None if error is None else float(error),
    }


def _portable(value: Json, key: str = "") -> Json:
    """A configuration without settings of the machine, in which absolute paths are cut to their last part."""
    if isinstance(value, dict):
        return {k: _portable(v, k) for k, v in value.items() if k not in PLACES and v is not None}
    if isinstance(value, list):
        return [_portable(item, key) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
