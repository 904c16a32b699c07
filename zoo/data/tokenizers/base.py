"""What a tokenizer is, and how one is kept in a folder."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from zoo.config.registry import TOKENIZERS, Config
from zoo.data.files import read_bytes
from zoo.utils.errors import DataError

DESCRIPTION = "zoo-tokenizer.json"
FOLDER = "tokenizer"
"""Where a run and each of its checkpoints keep theirs."""


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes:
        type: the name under which its configuration is registered.
        vocab_size: ids run from 0 to `vocab_size` - 1.
        eos_id: the id that ends a document; `encode` never yields it.
        hash: hexadecimal digest of everything that decides what `encode` returns.
    """

    type: ClassVar[str]
    vocab_size: int
    eos_id: int
    hash: str

    @property
    def opening(self) -> list[int]:
        """What its makers put in front of every text that stands alone: a token for that purpose, or none."""
        return []

    @property
    def start_id(self) -> int:
        """The id in front of a text that stands alone, where there has to be one."""
        return (self.opening or [self.eos_id])[0]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without an id that ends it."""

    def encode_markers(self, text: str) -> list[int]:
        """Turn text of a template into ids: as `encode`, but special tokens written out may count."""
        return self.encode(text)

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; ids that end a document are left out.

        Raises:
            DataError: an id outside the vocabulary.
        """

    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into an existing folder."""
        description = {
            "type": self.type,
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
            "hash": self.hash,
        }
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")

    def words(self, ids: Iterable[int]) -> list[int]:
        """Check ids, and leave out those that end a document.

        Raises:
            DataError: an id outside the vocabulary.
        """
        kept = []
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise DataError(f"token {token} is outside the tokenizer's vocabulary of {self.vocab_size}")
            if token != self.eos_id:
                kept.append(int(token))
        return kept


class TokenizerConfig(Config):
    """Which tokenizer to use, and what it takes to make it."""

    @property
    def learns(self) -> bool:
        """Whether `build` looks at the texts: such a tokenizer is trained once and kept."""
        return False

    @abstractmethod
    def build(self, texts: Callable[[], Iterator[str]]) -> Tokenizer:
        """Make the tokenizer.

        Args:
            texts: yields the training documents, afresh at every call.

        Raises:
            DataError: a file that cannot be used, or texts from which it cannot be trained.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read back what the tokenizer's `save` wrote into `folder`."""


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer that has more tokens than a model.

    Raises:
        DataError: it has.
    """
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"the tokenizer '{tokenizer.type}' has {tokenizer.vocab_size} tokens, but the model "
            f"{vocab_size}: expected the tokenizer that the model was trained with"
        )


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Read a tokenizer that `Tokenizer.save` wrote.

    Args:
        folder: the folder, for instance ``runs/demo/tokenizer``.

    Raises:
        DataError: there is none, or its files do not belong together.
    """
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(read_bytes(path))
        kind, expected = description["type"], description["hash"]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not the description of a tokenizer") from error
    tokenizer: Tokenizer = TOKENIZERS[kind].load(Path(folder))
    if tokenizer.hash != expected:
        raise DataError(f"{path}: the hash is {expected}, but the tokenizer beside it has {tokenizer.hash}")
    return tokenizer
