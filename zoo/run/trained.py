"""The configuration, the etas and the tokenizer that are kept with a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.data.classification.class_names import read_labels, write_labels
from zoo.data.dataset import DataConfig
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.saved import SavedConfig, find_tokenizer
from zoo.init import Entry, Registry
from zoo.models import Model
from zoo.run.config import load_config
from zoo.run.first_weights import read_measured_etas
from zoo.utils.atomic import write_folder
from zoo.utils.errors import DataError
from zoo.utils.run_folder import CheckpointFolder, ModelFolder, RunFolder, model_folder


def data_of(path: Path) -> DataConfig | None:
    """The data that a model was trained on.

    Args:
        path: a run, one of its checkpoints or a file of one, or any other model.

    Returns:
        The `data:` part of the configuration, with the tokenizer in the model's folder; None: the model comes
        without a configuration.
    """
    folder = model_folder(path)
    data = load_config(folder.config).data if folder.config.is_file() else None
    return None if data is None else with_kept_tokenizer(data, folder)


def entries_of(path: Path, model: Model) -> Sequence[Entry]:
    """The parameters of a model with the etas that it was trained with.

    Args:
        path: a run, one of its checkpoints or a file of one, or any other model.
        model: the model that was loaded from there.

    Returns:
        An entry for every parameter. Without a configuration the etas are those that the model declares.
        Empty if the etas were measured when the run began, and the path is a checkpoint without its run.

    Raises:
        CheckpointError: The etas that the run measured cannot be read.
    """
    folder = model_folder(path)
    if not folder.config.is_file():
        return Registry(model)
    config, measured = load_config(folder.config), None
    if config.eta == "measured":
        run = folder.run if isinstance(folder, CheckpointFolder) else folder
        if not isinstance(run, RunFolder) or not run.exists:
            return ()
        measured = read_measured_etas(run)
    return Registry(model, eta_overrides=config.eta_overrides, measured=measured)


def with_kept_tokenizer(data: DataConfig, folder: ModelFolder) -> DataConfig:
    """Replace the tokenizer by the copy that is kept with the model.

    The run may have been moved since it started, and the original files of its tokenizer may have been
    deleted.

    Args:
        data: the data of the run.
        folder: the run, or one of its checkpoints.
    """
    if hasattr(data, "tokenizer") and folder.tokenizer.is_dir():
        return data.model_copy(update={"tokenizer": SavedConfig(path=folder.tokenizer)})
    return data


def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer of a model.

    Args:
        path: a run, one of its checkpoints or a file of one, or any other model.

    Raises:
        DataError: The model comes without a tokenizer, or the tokenizer's files cannot be used.
    """
    return find_tokenizer(model_folder(path).path)


def check_together(path: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer that makes of a text tokens that the model at a path does not have.

    Raises:
        DataError: The tokenizer has more such tokens.
    """
    if tokenizer.needed_size > vocab_size:
        raise DataError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but model.vocab_size is {vocab_size}: "
            "they do not belong together"
        )


def published_ends(path: Path, model: Model, data: DataConfig | None) -> frozenset[int]:
    """The tokens at which transformers ends a text of an imported model, beside the tokenizer's.

    Args:
        path: the path of the model.
        model: the model that was loaded from there.
        data: the data that zoo has trained the model on, from `data_of`; None: it did not.

    Returns:
        The ids that `eos_token_id` lists in generation_config.json, or otherwise in config.json; none for a
        model that zoo trained.

    Raises:
        DataError: Its files name something that is no token.
    """
    if data is not None:
        return frozenset()
    named = (model.published.get(name, {}).get("eos_token_id") for name in ("generation", "config"))
    value = next((value for value in named if value is not None), ())
    ends = [value] if isinstance(value, int) else value
    if not isinstance(ends, list | tuple) or not all(type(end) is int for end in ends):
        raise DataError(f"{path}: eos_token_id is {value!r}; expected a token or a list of tokens")
    return frozenset(ends)


def bring_labels(source: Path, folder: Path) -> bool:
    """Copy the names of a classifier's classes, in the order of their indices, into another folder.

    Args:
        source: a run, one of its checkpoints or a file of one, or any other model.
        folder: an existing folder.

    Returns:
        Whether the source has such names.
    """
    of_source = model_folder(source)
    if not of_source.labels.is_file():
        return False
    write_labels(folder, read_labels(of_source.path))
    return True


def bring_tokenizer(source: Path, folder: Path) -> str:
    """Copy the tokenizer of a model into the folder of another one that has the same tokens.

    Args:
        source: a run, one of its checkpoints or a file of one, or any other model.
        folder: an existing folder.

    Returns:
        The result in words, because not every model comes with a tokenizer; nothing if the model was not
        trained on text.
    """
    data = data_of(source)
    if data is not None and not hasattr(data, "tokenizer"):
        return ""
    try:
        tokenizer = tokenizer_of(source)
    except DataError as error:
        return str(error)
    write_folder(ModelFolder(folder).tokenizer, tokenizer.save)
    return f"with its tokenizer: {tokenizer.type}, {tokenizer.vocab_size} tokens"
