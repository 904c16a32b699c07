"""The `data:` part of a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from zoo.data.byte import ByteConfig
from zoo.data.corpus import CorpusConfig
from zoo.data.jsonl import JsonlCorpus
from zoo.data.python_docs import PythonDocsCorpus
from zoo.data.sentencepiece import SentencePieceConfig
from zoo.data.text import TextCorpus
from zoo.data.tokenizer import TokenizerConfig
from zoo.schema import CORPORA, TOKENIZERS, Config, choice

__all__ = ["ByteConfig", "DataConfig", "JsonlCorpus", "PythonDocsCorpus", "SentencePieceConfig", "TextCorpus"]


if TYPE_CHECKING:
    AnyCorpus = CorpusConfig
    AnyTokenizer = TokenizerConfig
else:
    AnyCorpus = choice(CORPORA)
    AnyTokenizer = choice(TOKENIZERS)


class DataConfig(Config):
    """Where the text comes from, and how it becomes sequences of tokens."""

    corpus: AnyCorpus = Field(default=PythonDocsCorpus(), description="where the text comes from")
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    context: int = Field(default=256, gt=0, description="tokens the model sees in a sequence")
    validation: float = Field(
        default=0.05, ge=0, lt=1, description="share of the documents held out for validation"
    )
    cache_dir: Path | None = Field(
        default=None, description="where prepared data is kept; null: $XDG_CACHE_HOME/zoo or ~/.cache/zoo"
    )

    def cache_folder(self) -> Path:
        """The folder in which prepared data is kept."""
        if self.cache_dir is not None:
            return self.cache_dir.expanduser()
        home = os.environ.get("XDG_CACHE_HOME")
        return (Path(home) if home else Path.home() / ".cache") / "zoo"
