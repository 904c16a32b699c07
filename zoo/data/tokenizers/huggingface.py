"""Tokenizer `huggingface`: a tokenizer.json, read by the library that wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from zoo.config.registry import TOKENIZERS
from zoo.data.files import read_bytes, read_object, sha256
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig
from zoo.data.tokenizers.end_of_text import BY_ID, BY_TEXT, end_of_text
from zoo.utils.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
READER = "PreTrainedTokenizerFast"
"""The class of transformers that opens any tokenizer.json."""


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(
            f"a {TOKENIZER_FILE} is read by the package tokenizers: pip install 'zoo[hf]'"
        ) from error
    return tokenizers


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the Hugging Face hub.

    Special tokens that are written out in a text are text, as any other words; in the markers of a
    template (`encode_markers`) they count.

    Args:
        content: of a tokenizer.json.
        settings: of the tokenizer_config.json beside it, may be empty.
        eos: the token that ends a document: its text or its id.
        place: where they came from, for messages.

    Raises:
        DataError: not a tokenizer.json, or a token that it does not have.
    """

    type = "huggingface"

    def __init__(
        self,
        content: bytes,
        settings: Mapping[str, Any],
        eos: str | int,
        place: str | Path,
    ) -> None:
        library = _library()
        try:
            self._tokenizer = library.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"{place}: not a {TOKENIZER_FILE}: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._content = content
        self.vocab_size = 1 + max(vocabulary.values(), default=-1)
        self.eos_id = self._id(eos, "the end of a document", place)
        self._settings = {"tokenizer_class": READER, **settings}
        self._settings["eos_token"] = self._tokenizer.id_to_token(self.eos_id)
        self.hash = sha256(content + f"\neos {self.eos_id}".encode())

    def _id(self, token: str | int, what: str, place: str | Path) -> int:
        """The id of a token that is named by its text or its id."""
        known = self._tokenizer.token_to_id(token) if isinstance(token, str) else token
        if known is None or known < 0 or self._tokenizer.id_to_token(known) is None:
            raise DataError(f"{place}: {what} is {token!r}, which is no token of the {self.vocab_size} there")
        return int(known)

    @property
    def opening(self) -> list[int]:
        """What the file itself puts in front of a text: Llama's beginning, nothing for most."""
        around: list[int] = self._tokenizer.encode("", add_special_tokens=True).ids
        return [token for token in around if token != self.eos_id]

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, with no special token in front, behind or inside."""
        return [token for token in self._encode(text, special=False) if token != self.eos_id]

    def encode_markers(self, text: str) -> list[int]:
        """Turn the text of a template into ids; special tokens that are written out count as such."""
        return self._encode(text, special=True)

    def _encode(self, text: str, special: bool) -> list[int]:
        self._tokenizer.encode_special_tokens = not special
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; special tokens are left out."""
        text: str = self._tokenizer.decode(self.words(ids), skip_special_tokens=True)
        return text

    def save(self, folder: Path) -> None:
        """Write tokenizer.json as it was, tokenizer_config.json with the end in it, and the description."""
        (folder / TOKENIZER_FILE).write_bytes(self._content)
        settings = json.dumps(self._settings, indent=2, ensure_ascii=False)
        (folder / SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")
        super().save(folder)


@TOKENIZERS.register
class HuggingFaceConfig(TokenizerConfig):
    """Hugging Face: a tokenizer.json, or the folder that has one."""

    type: Literal["huggingface"] = "huggingface"
    path: Path = Field(description="tokenizer.json, or the folder it is in")
    eos: str | int | None = Field(
        default=None,
        description="the token that ends a document, or its id; null: what the files beside it name",
    )

    def build(self, texts: Callable[[], Iterator[str]]) -> HuggingFaceTokenizer:
        """Read the files; they need no texts."""
        path = self.path.expanduser()
        file = path / TOKENIZER_FILE if path.is_dir() else path
        content = read_bytes(file)
        eos = end_of_text(file.parent) if self.eos is None else self.eos
        if eos is None:
            raise DataError(
                f"{file}: no file beside it says which token ends a document (eos_token in "
                f"{' or '.join(BY_TEXT)}, eos_token_id in {' or '.join(BY_ID)}); name it: "
                f"{{type: huggingface, path: {self.path}, eos: '</s>'}}"
            )
        settings_file = file.with_name(SETTINGS_FILE)
        settings = read_object(settings_file) if settings_file.is_file() else {}
        return HuggingFaceTokenizer(content, settings, eos, file)

    @classmethod
    def load(cls, folder: Path) -> HuggingFaceTokenizer:
        """Read the files that `save` wrote."""
        return cls(path=folder).build(lambda: iter(()))
