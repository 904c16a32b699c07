"""Models in files: safetensors with the recipe in the header, so that a file rebuilds its model.

A path is a run folder, a checkpoint folder or a .safetensors file, or a folder in the layout of the
Hugging Face hub; files of other libraries are read by the formats of `FORMATS`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from zoo.atomic import write_file
from zoo.errors import CheckpointError, ZooError, did_you_mean
from zoo.models import Model
from zoo.recipe import Recipe, declare, materialise
from zoo.schema import INITS, MODELS, REPARAMS
from zoo.sharded import gathered
from zoo.spec import declared
from zoo.tensorfile import check_match, read_tensors, write_tensors

MODEL_FILE = "model.safetensors"
CHECKPOINTS = "checkpoints"
RUN_CONFIG = "config.yaml"
SUFFIX = ".safetensors"
VERSION = "1"
SCALES = "gates"
LOOKUPS = "lookups"
FORMATS = {"ngpt-reference": "zoo.hub.ngpt_reference:load_ngpt_reference"}
"""Files of others: the name of the format, and the function (path, **options) that reads it."""
HUB_CONFIG = "config.json"
HUB_FOLDER = "zoo.hub.folder:load_hub"
"""What a folder of the Hugging Face hub has, and what reads it."""

Which = Literal["last", "best"]


def save_model(model: Model, path: str | Path) -> Path:
    """Write a model to one file that `load_model` opens.

    Args:
        model: a zoo model; if it is sharded all ranks must call this, and the first one writes.
        path: a .safetensors file, or a folder, which gets a ``model.safetensors``.

    Returns:
        The file.

    Raises:
        CheckpointError: the system refuses; a file that was there before is untouched.
    """
    file = _file_in(Path(path))
    writes = not dist.is_initialized() or dist.get_rank() == 0
    tensors, header = gathered(model.state_dict(), writes), metadata(model)
    if writes:
        write_file(file, lambda partial: write_tensors(partial, tensors, header))
    return file


def load_model(
    path: str | Path,
    format: str | None = None,
    *,
    which: Which = "last",
    device: str | torch.device = "cpu",
    **options: Any,
) -> Model:
    """Rebuild a model from what was saved.

    Args:
        path: a run folder, a checkpoint folder, a .safetensors file, or a folder with config.json
            and safetensors as on the Hugging Face hub.
        format: None for those, otherwise one of `FORMATS`.
        which: the checkpoint of a run folder.
        device: where the parameters live.
        **options: of the format, for instance ``n_heads=4``; of a hub folder ``allow=["lm_head.*"]``,
            the tensors that may be missing or without a place.

    Returns:
        The model, with its `recipe`.

    Raises:
        CheckpointError: missing, truncated, foreign, of another architecture, or not what the
            format expects; the message names the file.
        ZooError: an unknown format or option.
    """
    found = find_checkpoint(Path(path), which)
    if format is None and (found / HUB_CONFIG).is_file():
        return _foreign(found, HUB_FOLDER, options).to(device)
    file = _file_in(found)
    if format is not None:
        if format not in FORMATS:
            raise ZooError(f"no format called '{format}'{did_you_mean(format, FORMATS)}")
        return _foreign(file, FORMATS[format], options).to(device)
    if options:
        raise ZooError(f"load_model: {', '.join(options)} has no effect without a format")
    tensors, header = read_tensors(file)
    model = _declared_in(file, header)
    check_match(file, tensors, model.state_dict())
    materialise(model, torch.device(device))
    model.load_state_dict(tensors)
    return model


def load_weights(model: nn.Module, file: Path) -> None:
    """Fill an existing model, not sharded, from a file.

    Raises:
        CheckpointError: missing, truncated, or of another architecture.
    """
    tensors, _ = read_tensors(file)
    check_match(file, tensors, model.state_dict())
    model.load_state_dict(tensors)


def find_checkpoint(path: Path, which: Which = "last") -> Path:
    """The checkpoint folder of a run folder; any other path as it is.

    Raises:
        CheckpointError: the path does not exist, or the run has no such checkpoint.
    """
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file or folder; expected a run, a checkpoint or a {SUFFIX} file"
        )
    if not (path / RUN_CONFIG).is_file():
        return path
    pointer = pointer_file(path, which)
    try:
        return path / CHECKPOINTS / str(json.loads(pointer.read_text())["checkpoint"])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: the run has no {which} checkpoint yet") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{pointer}: expected {{"checkpoint": "step-..."}}') from error


def pointer_file(run: Path, which: Which) -> Path:
    """The small file that names a run's last or best checkpoint."""
    return run / CHECKPOINTS / f"{which}.json"


def metadata(model: Model) -> dict[str, str]:
    """The header of a model's file: format, version, and the recipe as JSON.

    A model that was split took its scales from its matrices, and one that was merged may have kept
    a lookup factor of the method's: no recipe tells, so they are added.
    """
    recipe: Recipe = model.recipe
    header = {"format": "zoo", "version": VERSION, "recipe": recipe.model_dump_json()}
    declaration = declare(recipe)
    for key, factors in ((SCALES, _scales), (LOOKUPS, _lookups)):
        usual = factors(declaration)
        other = {name: factor for name, factor in factors(model).items() if factor != usual.get(name)}
        if other:
            header[key] = json.dumps(other)
    return header


def _scales(model: nn.Module) -> dict[str, float]:
    """By what factor each reparameterised tensor is smaller than the virtual one."""
    return {p.name: p.spec.scale for p in declared(model) if p.local in p.module.reparameterised}


def _lookups(model: nn.Module) -> dict[str, float]:
    """By what factor what is looked up in a table is larger than its rows."""
    parameters = [p for p in declared(model) if p.local in p.module.reparameterised]
    return {p.name: p.module.reparameterised[p.local].lookup for p in parameters}


def _rescale(model: nn.Module, scales: dict[str, float], lookups: dict[str, float]) -> None:
    """Give a model declared on meta the factors of the one that was saved."""
    with torch.device("meta"):
        for p in list(declared(model)):
            front = p.module.reparameterised
            if p.name in scales:
                front[p.local].rescale(p.module, p.local, scales[p.name])
            if p.name in lookups:
                front[p.local] = replace(front[p.local], lookup=lookups[p.name])


def _file_in(path: Path) -> Path:
    return path if path.suffix == SUFFIX or path.is_file() else path / MODEL_FILE


def _foreign(path: Path, reader: str, options: dict[str, Any]) -> Model:
    module, name = reader.split(":")
    read = getattr(import_module(module), name)
    try:
        signature(read).bind(path, **options)
    except TypeError as error:
        raise ZooError(f"{name}: {error}") from error
    model: Model = read(path, **options)
    return model


def _declared_in(file: Path, header: dict[str, str]) -> Model:
    """The model that a header describes, on the meta device."""
    if header.get("format") != "zoo" or "recipe" not in header:
        raise CheckpointError(
            f"{file}: a safetensors file, but zoo did not write it (no recipe in its header); "
            f"expected one from save_model, a hub folder with its {HUB_CONFIG}, or give a format: "
            f"{', '.join(FORMATS)}"
        )
    if header.get("version") != VERSION:
        raise CheckpointError(f"{file}: version {header.get('version')} of the format; expected {VERSION}")
    kinds = {"model": MODELS, "init": INITS, "reparam": REPARAMS}
    try:
        given = json.loads(header["recipe"])
        recipe = Recipe(**{part: kind[given[part]["type"]](**given[part]) for part, kind in kinds.items()})
        model = declare(recipe)
        _rescale(model, *(json.loads(header.get(key, "{}")) for key in (SCALES, LOOKUPS)))
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{file}: the recipe in its header does not describe a model: {reason}"
        ) from error
    return model
