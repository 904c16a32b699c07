"""Tokenizer `byte`: the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from zoo.config.registry import TOKENIZERS
from zoo.data.files import sha256
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig


class ByteTokenizer(Tokenizer):
    """One id per byte; byte 0xFF, which never occurs in UTF-8, ends a document."""

    type = "byte"
    vocab_size = 256
    eos_id = 0xFF
    hash = sha256(b"zoo byte tokenizer, eos 255")

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of the text."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; invalid UTF-8, which a model may generate, becomes U+FFFD."""
        return bytes(self.without_eos(ids)).decode("utf-8", errors="replace")

    def is_final(self, ids: Sequence[int]) -> bool:
        """Return True, as characters are decoded one by one."""
        return True


@TOKENIZERS.register
class ByteConfig(TokenizerConfig):
    """The bytes of UTF-8: 256 ids, nothing to train."""

    type: Literal["byte"] = "byte"

    def build(self, texts: Callable[[], Iterator[str]]) -> ByteTokenizer:
        """Build the tokenizer; the texts are not read."""
        return ByteTokenizer()

    @classmethod
    def load(cls, folder: Path) -> ByteTokenizer:
        """Build the tokenizer; no file is read."""
        return ByteTokenizer()
