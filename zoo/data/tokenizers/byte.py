"""Tokenizer `byte`: the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from zoo.config.registry import TOKENIZERS
from zoo.data.files import sha256
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig


class ByteTokenizer(Tokenizer):
    """256 ids, one per byte; 0xFF, which UTF-8 never uses, ends a document."""

    type = "byte"
    vocab_size = 256
    eos_id = 0xFF
    hash = sha256(b"zoo byte tokenizer, eos 255")

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of the text."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; bytes that are not UTF-8, as a model may sample, become U+FFFD."""
        return bytes(self.words(ids)).decode("utf-8", errors="replace")


@TOKENIZERS.register
class ByteConfig(TokenizerConfig):
    """The bytes of UTF-8: 256 ids, nothing to train."""

    type: Literal["byte"] = "byte"

    def build(self, texts: Callable[[], Iterator[str]]) -> ByteTokenizer:
        """Make the tokenizer; it needs no texts."""
        return ByteTokenizer()

    @classmethod
    def load(cls, folder: Path) -> ByteTokenizer:
        """Make the tokenizer; there is nothing to read."""
        return ByteTokenizer()
