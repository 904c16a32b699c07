"""What prepared data says about itself: manifest.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zoo.config.registry import Config
from zoo.data.files import read_bytes
from zoo.data.tokens import Dtype
from zoo.utils.errors import DataError

MANIFEST = "manifest.json"
VERSION = 2  # raise it when the same sources and settings would give other tokens


class SourceEntry(Config):
    """A file the text came from."""

    name: str
    bytes: int
    sha256: str


class TokenizerEntry(Config):
    """The tokenizer that made the tokens."""

    type: str
    hash: str
    vocab_size: int
    eos_id: int


class SideEntry(Config):
    """One side of the split: `tokens` counts the ends of documents, `utf8_bytes` does not."""

    file: str
    documents: int
    tokens: int
    utf8_bytes: int


class Manifest(Config):
    """Everything that decided the tokens, and how many there are.

    Attributes:
        version: of the layout and the rules.
        corpora: the configurations of the corpus and, if it has one of its own, of the validation text.
        sources: the files, in order.
        tokenizer: what made the tokens.
        validation_share: the part of the documents held out.
        dtype: type of the ids in the files, little-endian.
        train, validation: the two sides; `validation` is None if nothing is held out.
    """

    version: int
    corpora: list[dict[str, Any]]
    sources: list[SourceEntry]
    tokenizer: TokenizerEntry
    validation_share: float
    dtype: Dtype
    train: SideEntry
    validation: SideEntry | None

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read it from a folder.

        Raises:
            DataError: there is none, or it is damaged.
        """
        path = folder / MANIFEST
        try:
            return cls.model_validate_json(read_bytes(path))
        except ValidationError as error:
            raise DataError(f"{path}: damaged; delete {folder} to prepare the data again") from error
