"""Models in files: safetensors with the recipe in the header, from which the model can be rebuilt.

A path is a run folder, a checkpoint folder, a .safetensors file, or a folder or file of another library in
one of the formats of `zoo.checkpoint.formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from zoo.checkpoint.format import ModelFile, metadata
from zoo.checkpoint.formats import FILE_FORMATS, FOLDER_FORMATS, OpenedCheckpoint, folder_format
from zoo.checkpoint.pieces import is_there
from zoo.checkpoint.recipe import Prepare, materialise
from zoo.checkpoint.safetensors import check_match, count_entries, write_tensors
from zoo.init.infer import unwrapped
from zoo.models import Model
from zoo.utils.atomic import write_file
from zoo.utils.errors import CheckpointError, ZooError, did_you_mean
from zoo.utils.progress import progress
from zoo.utils.run_folder import CheckpointFolder, RunFolder, Which
from zoo.utils.sharded import gathered

SUFFIX = ".safetensors"
OTHER_FILES = (".bin", ".ckpt", ".npz", ".onnx", ".pt", ".pth")
"""Suffixes of files of weights that `save_model` does not write."""
FLOATING = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOATING |= {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtypes of weights, by the names that the user can give."""


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Write a model to one file that `load_model` opens.

    Args:
        model: a zoo model, also a compiled one; if it is sharded all ranks must call this function, and the
            first one writes.
        path: a .safetensors file, or a folder, which gets a ``model.safetensors``: a new one, or one that
            this function made.

    Returns:
        The file.

    Raises:
        CheckpointError: The model is no zoo model, the path is that of a file of another kind, of a run, of
            its checkpoint or of a folder as on the hub, or the file cannot be written; an existing file is
            untouched.
    """
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    if not isinstance(model, Model):
        raise CheckpointError(
            f"save_model: {type(model).__name__} is no model of zoo; expected one, or "
            "safetensors.torch.save_model"
        )
    path = Path(path)
    require_model_path(path)
    file = _file_in(path)
    writes = not dist.is_initialized() or dist.get_rank() == 0
    state = model.state_dict()
    tensors, header = gathered(state, writes) if dist.is_initialized() else state, metadata(model)
    if writes:
        with progress(f"writing {file}", count_entries(tensors)) as advance:
            write_file(file, lambda partial: write_tensors(partial, tensors, header, advance))
    return file


def load_model(
    path: str | Path,
    format: str | None = None,
    *,
    which: Which = "last",
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    prepare: Prepare | None = None,
    **options: object,
) -> Model:
    """Load a model from a checkpoint of zoo, or of another library.

    Args:
        path: a run folder, a checkpoint folder, a .safetensors file, or a folder with config.json
            and safetensors as on the Hugging Face hub.
        format: one of `FILE_FORMATS` for files of other libraries; None for the paths above.
        which: the checkpoint of a run folder.
        device: where the parameters live.
        dtype: dtype of the parameters and buffers, to which they are rounded when they are read, for instance
            ``torch.bfloat16`` or a name, ``bfloat16`` or ``bf16``; None: float32, which represents the values
            of every supported file exactly.
        prepare: a function that is called, for zoo's own files, with the declared model before it is
            allocated, see `zoo.checkpoint.recipe.assemble`.
        **options: options of the format, for instance ``n_heads=4``; for a hub folder
            ``allow=["lm_head.*"]``, patterns of tensors that may be missing or unexpected.

    Returns:
        The model, with its `recipe`.

    Raises:
        CheckpointError: The file is missing, truncated, of another library or architecture, or does not have
            the content that the format requires; the message names the file.
        ZooError: The format or an option is unknown, or `dtype` is no floating point dtype.
    """
    dtype = FLOATING.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ZooError(f"dtype: {dtype}; expected one of floating point, such as bfloat16")
    while True:
        checkpoint = find_checkpoint(Path(path), which)
        try:
            return _load(checkpoint, format, torch.device(device), dtype, prepare, options)
        except (CheckpointError, FileNotFoundError):
            # A run that is being trained names the next checkpoint before it deletes old ones.
            if find_checkpoint(Path(path), which) == checkpoint:
                raise


def _load(
    checkpoint: Path,
    format: str | None,
    device: torch.device,
    dtype: torch.dtype | None,
    prepare: Prepare | None,
    options: dict[str, object],
) -> Model:
    """Load the model of a checkpoint, a file or a folder as on the hub, see `load_model`."""
    file = _file_in(checkpoint)
    if format is not None:
        if format not in FILE_FORMATS:
            raise ZooError(f"no format called '{format}'{did_you_mean(format, FILE_FORMATS)}")
        return _load_with(FILE_FORMATS[format], file, options).to(device, dtype)
    if (other := folder_format(checkpoint)) is not None:
        return _load_with(other.load, checkpoint, {**options, "dtype": dtype}).to(device)
    if options:
        raise ZooError(f"load_model: {', '.join(options)} has no effect without a format")
    saved = _model_file(file)
    model = saved.declare()
    check_match(file, saved.tensors, model.state_dict())
    if prepare is not None:
        prepare(model)
    materialise(model.to(dtype), device)
    saved.fill(model.state_dict())
    return model


def open_checkpoint(path: Path) -> OpenedCheckpoint:
    """Read everything of a checkpoint but its weights.

    Args:
        path: a run folder, of which the last checkpoint is read, a checkpoint folder, a .safetensors file, or
            a folder as on the hub.

    Raises:
        CheckpointError: There is no checkpoint, or it cannot be read.
    """
    checkpoint = find_checkpoint(path)
    if (other := folder_format(checkpoint)) is not None:
        return other.open(checkpoint)
    return _model_file(_file_in(checkpoint))


def find_checkpoint(path: Path, which: Which = "last") -> Path:
    """The checkpoint folder of a run folder; any other path is returned unchanged.

    Raises:
        CheckpointError: The path does not exist, or the run has no such checkpoint.
    """
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file or folder; expected a run, a checkpoint, a {SUFFIX} file or a Hugging "
            "Face folder (nothing is downloaded)"
        ).because_missing(path)
    run = RunFolder(path)
    if not run.exists:
        return path
    checkpoint = run.checkpoint(which)
    if checkpoint is None:
        known = ["last", "best", *run.best_names()]
        if which not in known:
            raise CheckpointError(f"{path}: no checkpoint called '{which}'{did_you_mean(which, known)}")
        raise CheckpointError(f"{path}: the run has no {which} checkpoint yet")
    return checkpoint.path


def require_model_path(path: Path) -> None:
    """Refuse a path to save a model at that is, or is called like, something of another kind.

    Raises:
        CheckpointError: The path is neither a .safetensors file nor a folder, or a folder whose files would
            no longer belong together.
    """
    if path.suffix == SUFFIX:
        return
    if path.suffix in OTHER_FILES or path.is_file():
        raise CheckpointError(
            f"{path}: a model is saved as a {SUFFIX} file or in a folder; expected one of them"
        )
    kind = None
    if RunFolder(path).exists:
        kind = "a run, which reads only its own checkpoints"
    elif CheckpointFolder(path).has_state:
        kind = "a checkpoint of a run, whose weights belong to the state of its optimizer"
    elif (other := folder_format(path)) is not None:
        kind = f"a folder as on the Hugging Face hub ({other.marker}), which zoo reads as such"
    if kind is not None:
        raise CheckpointError(f"{path}: {kind}; expected a new folder or a {SUFFIX} file")


def _file_in(path: Path) -> Path:
    return path if path.suffix == SUFFIX or path.is_file() else CheckpointFolder(path).model


def _model_file(file: Path) -> ModelFile:
    markers = " or ".join(other.marker for other in FOLDER_FORMATS)
    if file == CheckpointFolder(file.parent).model and file.parent.is_dir() and not is_there(file):
        raise CheckpointError(
            f"{file.parent}: neither {file.name} nor {markers} in it; expected a run, a checkpoint, or a "
            "folder as on the Hugging Face hub"
        )
    expected = f"one from save_model, a hub folder with its {markers}, or give a format: "
    return ModelFile.open(file, expected + ", ".join(FILE_FORMATS))


def _load_with(load: Callable[..., Model], path: Path, options: dict[str, object]) -> Model:
    """Call the reader of a format; an option that it does not take, or that is missing, raises a ZooError."""
    _, *known = signature(load).parameters.values()
    names = [parameter.name for parameter in known]
    for name in options:
        if name not in names:
            raise ZooError(f"{path}: its format has no option called '{name}'{did_you_mean(name, names)}")
    for parameter in known:
        if parameter.default is Parameter.empty and parameter.name not in options:
            raise ZooError(
                f"{path}: its format needs {parameter.name}, an argument of load_model and the option "
                f"--{parameter.name.replace('_', '-')} of zoo import"
            )
    return load(path, **options)
