"""Tokenizer `saved`: the tokenizer of a run, a checkpoint or an imported model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from zoo.config.inputs import READS_FILES
from zoo.config.registry import TOKENIZERS
from zoo.data.tokenizers.base import DESCRIPTION, Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokenizers.huggingface import TOKENIZER_FILE, HuggingFaceConfig
from zoo.data.tokenizers.sentencepiece import MODEL_FILE, SentencePieceConfig
from zoo.utils.errors import DataError
from zoo.utils.files import expand_home
from zoo.utils.run_folder import ModelFolder


def has_tokenizer(folder: Path) -> bool:
    """Whether the files of a tokenizer are in a folder or in its subfolder for them."""
    folders = (ModelFolder(folder).tokenizer, folder)
    return any((p / name).is_file() for p in folders for name in (DESCRIPTION, TOKENIZER_FILE, MODEL_FILE))


def find_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer that belongs to a model, whatever its type.

    Args:
        path: a run, a checkpoint, an imported model (its folder or file), a Hugging Face folder, or the
            tokenizer's own folder.

    Raises:
        DataError: There is no tokenizer, or its files cannot be used.
    """
    path = Path(path)
    folder = path.parent if path.is_file() else path
    kept = ModelFolder(folder).tokenizer
    for place in (kept, folder):
        if (place / DESCRIPTION).is_file():
            return load_tokenizer(place)
        if (place / TOKENIZER_FILE).is_file():
            return HuggingFaceConfig(path=place).build(lambda: iter(()))
        if (place / MODEL_FILE).is_file():
            return SentencePieceConfig.load(place)
    hint = "" if folder.is_dir() else ", which is no folder"
    error = DataError(
        f"no tokenizer in {folder}{hint}: expected {DESCRIPTION}, {TOKENIZER_FILE} or "
        f"{MODEL_FILE} there or in its folder '{kept.name}'"
    )
    raise error if path.exists() else error.because_missing(path)


@TOKENIZERS.register
class SavedConfig(TokenizerConfig):
    """The tokenizer of a run, a checkpoint, an imported model or a Hugging Face folder."""

    type: Literal["saved"] = "saved"
    path: Annotated[Path, READS_FILES] = Field(
        description="the folder of the run, checkpoint or model, or the tokenizer's own"
    )

    def build(self, texts: Callable[[], Iterator[str]]) -> Tokenizer:
        """Load the files; the texts are not read."""
        return find_tokenizer(expand_home(self.path))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load a tokenizer of any type that `save` wrote."""
        return load_tokenizer(folder)
