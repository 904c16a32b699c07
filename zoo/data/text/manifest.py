"""manifest.json: the description of prepared token files."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from zoo.config.registry import Config
from zoo.data.files import read_bytes
from zoo.data.tokens import Dtype
from zoo.utils.errors import DataError
from zoo.utils.untyped import JsonObject

MANIFEST = "manifest.json"
VERSION = 2  # to be increased when the same sources and settings give other tokens


class SourceEntry(Config):
    """A file of the corpus, as manifest.json records it."""

    name: str
    bytes: int
    sha256: str


class TokenizerEntry(Config):
    """The tokenizer that made the tokens, as manifest.json records it."""

    type: str
    hash: str
    vocab_size: int
    eos_id: int


class SplitEntry(Config):
    """The training or the validation split.

    `tokens` counts the end-of-document tokens, `utf8_bytes` does not count them.
    """

    file: str
    documents: int
    tokens: int
    utf8_bytes: int


class TokenManifest(Config):
    """All settings that determine the tokens, and the numbers of tokens.

    Attributes:
        version: version of the file format and of the tokenisation.
        corpora: the configurations of the corpus and, if there is one, of the validation corpus.
        sources: the files, in their order.
        tokenizer: the tokenizer.
        validation_share: share of the documents that is held out.
        dtype: dtype of the ids in the files, little-endian.
        train: the training split.
        validation: the validation split; None if nothing is held out.
    """

    version: int
    corpora: list[JsonObject]
    sources: list[SourceEntry]
    tokenizer: TokenizerEntry
    validation_share: float
    dtype: Dtype
    train: SplitEntry
    validation: SplitEntry | None

    def write(self, folder: Path) -> None:
        """Write manifest.json into a folder."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> TokenManifest:
        """Read manifest.json from a folder.

        Raises:
            DataError: The file is missing or damaged.
        """
        path = folder / MANIFEST
        try:
            return cls.model_validate_json(read_bytes(path))
        except ValidationError as error:
            raise DataError(f"{path}: damaged; delete {folder} to prepare the data again") from error
