"""What is kept with a model: how it was trained, and the tokenizer that made its tokens."""

from __future__ import annotations

from pathlib import Path

from zoo.checkpoint.model import RUN_CONFIG, run_of
from zoo.data import DataConfig, Tokenizer, find_tokenizer
from zoo.data.tokenizers.base import FOLDER
from zoo.run.config import load_config
from zoo.utils.atomic import write_folder
from zoo.utils.errors import DataError

RUN_COPY = "run.yaml"
"""A checkpoint's copy of its run's configuration. Of another name: ``config.yaml`` is what tells a run."""


def data_of(path: Path) -> DataConfig | None:
    """What a model was trained on.

    Args:
        path: a run, one of its checkpoints or their files, or any other model.

    Returns:
        The `data:` part of its configuration; None: nobody knows.
    """
    folder = _home(path)
    for name in (RUN_COPY, RUN_CONFIG):
        if (folder / name).is_file():
            return load_config(folder / name).data
    return None


def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer of a model; the path as for `data_of`.

    Raises:
        DataError: there is none, or its files cannot be used.
    """
    return find_tokenizer(_home(path))


def check_together(path: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer that has more tokens than the model at a path.

    Raises:
        DataError: it has.
    """
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but model.vocab_size is {vocab_size}: "
            "they do not belong together"
        )


def bring_tokenizer(source: Path, folder: Path) -> str:
    """Copy the tokenizer of a model into the folder of another one that has the same tokens.

    Args:
        source: as for `data_of`.
        folder: an existing one.

    Returns:
        What was done, in words: not every model comes with a tokenizer.
    """
    try:
        tokenizer = tokenizer_of(source)
    except DataError as error:
        return str(error)
    write_folder(folder / FOLDER, tokenizer.save)
    return f"wrote {folder / FOLDER}: {tokenizer.type}, {tokenizer.vocab_size} tokens"


def _home(path: Path) -> Path:
    """The folder that describes a model: a checkpoint's own, or its run's if an older version wrote it."""
    folder = path if path.is_dir() else path.parent
    return folder if (folder / RUN_COPY).is_file() else run_of(folder)
