"""The interface of tokenizers, and saving and loading them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from zoo.config.registry import TOKENIZERS, Config, location, require_instance
from zoo.data.files import read_object
from zoo.utils.errors import ConfigError, DataError

DESCRIPTION = "zoo-tokenizer.json"
SAMPLE = "Capitals,  two blanks,\n\ta tab, 3.14, é, 中 and 🦊."
"""A text that survives encoding and decoding only without normalisation and unknown characters."""


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes:
        type: name under which its configuration is registered.
        vocab_size: number of ids, which run from 0 to `vocab_size` - 1.
        eos_id: id that ends a document; `encode` never returns it.
        hash: hexadecimal digest of everything that determines the output of `encode`.
        former_hash: the digest that earlier versions wrote for the same files, if they encoded other tokens.
        special_tokens: texts of the special tokens, in the order of their ids; empty: they have no texts.
    """

    type: ClassVar[str]
    vocab_size: int
    eos_id: int
    hash: str
    former_hash: str | None = None
    special_tokens: Sequence[str] = ()

    @property
    def keeps_text(self) -> bool:
        """Whether `decode` returns the encoded text, tested on a sample text."""
        return self.decode(self.encode(SAMPLE)) == SAMPLE

    @property
    def needed_size(self) -> int:
        """The vocabulary that a model needs to read every text; tokens that no text becomes may be beyond."""
        return self.vocab_size

    @property
    def prefix_ids(self) -> list[int]:
        """Ids that the authors put before a text, such as Llama's beginning-of-text token; often none."""
        return []

    @property
    def suffix_ids(self) -> list[int]:
        """Ids that the authors put behind a text, such as BERT's ``[SEP]``; often none."""
        return []

    @property
    def start_id(self) -> int:
        """The first id of a sequence where one is required: the prefix, or else `eos_id`."""
        return (self.prefix_ids or [self.eos_id])[0]

    def token_id(self, token: str) -> int | None:
        """The id of a token that is known by its text, such as BERT's ``[MASK]``; None: there is none."""
        return None

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without an end-of-document id."""

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Like `encode`, but special tokens that are spelled out in the text may become their ids."""
        return self.encode(text)

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; end-of-document ids are skipped.

        Raises:
            DataError: An id is outside the vocabulary.
        """

    def is_final(self, ids: Sequence[int]) -> bool | None:
        """Whether the text of these ids stays as it is, whatever ids follow.

        `zoo.sampling.TextStreamer` asks this while ids are generated. It shows a final text, and decodes what
        follows behind the ids of the last part that was final, not behind all ids. A tokenizer may say True
        only if both give the same text: what an id is decoded to may depend on whether any text is in front
        of it, because many tokenizers remove the blank of the first word, but not on text further back.

        Args:
            ids: the ids of a text, or of its end, which may include ids outside the vocabulary.

        Returns:
            True if the text is final, apart from U+FFFD at its end, which the caller takes for an incomplete
            character. False if it may change: it is held back. None, as here, if that is not known, which is
            right for every tokenizer: the text is shown, and all ids are decoded again with each new one.
        """
        return None

    def save(self, folder: Path) -> None:
        """Write the files that `load_tokenizer` reads into an existing folder."""
        description = {
            "type": self.type,
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
            "hash": self.hash,
        }
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")

    def without_eos(self, ids: Iterable[int]) -> list[int]:
        """Check ids, and remove those that end a document.

        Raises:
            DataError: An id is outside the vocabulary.
        """
        kept = []
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise DataError(f"token {token} is outside the tokenizer's vocabulary of {self.vocab_size}")
            if token != self.eos_id:
                kept.append(int(token))
        return kept


class TokenizerConfig(Config):
    """The configuration of a tokenizer.

    Attributes:
        may_keep_text: whether decoding may return the encoded text; `Tokenizer.keeps_text` tests it.
    """

    may_keep_text: ClassVar[bool] = True

    @property
    def is_trained(self) -> bool:
        """Whether `build` trains the tokenizer on the texts; the result is then cached."""
        return False

    @abstractmethod
    def build(self, texts: Callable[[], Iterator[str]]) -> Tokenizer:
        """Build the tokenizer.

        Args:
            texts: a function that yields the training documents, from the first one at every call.

        Raises:
            DataError: A file cannot be used, or the tokenizer cannot be trained on the texts.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer from the files that its `save` wrote into `folder`."""


def built_tokenizer(config: TokenizerConfig, texts: Callable[[], Iterator[str]]) -> Tokenizer:
    """The tokenizer of a configuration, which a plugin may have written.

    Raises:
        ConfigError: It is no tokenizer, or lacks an attribute; the message names the class.
        DataError: A file cannot be used, or the tokenizer cannot be trained on the texts.
    """
    return _checked(type(config), "build", config.build(texts))


def _checked(cls: type[TokenizerConfig], method: str, made: Tokenizer) -> Tokenizer:
    """Check what a method of a configuration has made.

    Raises:
        ConfigError: It is no tokenizer, or lacks an attribute; the message names the class.
    """
    tokenizer = require_instance(cls, method, made, Tokenizer)
    if missing := [name for name in ("vocab_size", "eos_id", "hash") if not hasattr(tokenizer, name)]:
        raise ConfigError(f"{location(type(tokenizer))}: no attribute {' and no '.join(missing)}")
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Check that a model's vocabulary has room for all tokens that a text may become.

    Raises:
        DataError: The tokenizer has more such tokens than the model.
    """
    if tokenizer.needed_size > vocab_size:
        raise DataError(
            f"the tokenizer '{tokenizer.type}' has {tokenizer.vocab_size} tokens, but the model "
            f"{vocab_size}: expected the tokenizer that the model was trained with"
        )


def check_ids(ids: Iterable[int], tokenizer: Tokenizer, vocab_size: int) -> None:
    """Check tokens of a text in which special tokens may be spelled out.

    Args:
        ids: the tokens.
        tokenizer: the tokenizer that has made them.
        vocab_size: vocabulary of the model that will read them.

    Raises:
        DataError: The tokenizer has a token that the model does not have, and it is in the text.
    """
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise DataError(
            f"the text has token {largest} of the tokenizer '{tokenizer.type}', but the model's vocabulary "
            f"ends at {vocab_size - 1}: expected a text without this special token"
        )


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load a tokenizer that `Tokenizer.save` wrote.

    Args:
        folder: the tokenizer's folder, for instance ``runs/my-run/tokenizer``.

    Raises:
        DataError: The folder has no tokenizer, or its files do not belong together.
        ConfigError: A plugin has loaded something else.
    """
    path = Path(folder) / DESCRIPTION
    description = read_object(path)
    kind, expected = description.get("type"), description.get("hash")
    if not isinstance(kind, str) or kind == "saved" or not isinstance(expected, str):
        raise DataError(f"{path}: not the description of a tokenizer: type {kind!r}, hash {expected!r}")
    config: type[TokenizerConfig] = TOKENIZERS[kind]
    try:
        tokenizer = _checked(config, "load", config.load(Path(folder)))
    except DataError as error:
        if error.missing is None:
            raise
        expected_file = f"expected the file of the {kind} tokenizer that {DESCRIPTION} beside it describes"
        raise DataError(f"{error}; {expected_file}").because_missing(error.missing) from error
    if expected not in (tokenizer.hash, tokenizer.former_hash):
        raise DataError(f"{path}: the hash is {expected}, but the tokenizer beside it has {tokenizer.hash}")
    return tokenizer
