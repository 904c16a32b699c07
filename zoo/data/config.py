"""The `data:` part of a configuration."""

from __future__ import annotations

import os
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from zoo.data.byte import ByteConfig
from zoo.data.corpus import CorpusConfig
from zoo.data.jsonl import JsonlCorpus
from zoo.data.python_docs import PythonDocsCorpus
from zoo.data.sentencepiece import SentencePieceConfig
from zoo.data.text import TextCorpus
from zoo.data.tokenizer import TokenizerConfig
from zoo.schema import CORPORA, TOKENIZERS, Config, Kind

__all__ = ["ByteConfig", "DataConfig", "JsonlCorpus", "PythonDocsCorpus", "SentencePieceConfig", "TextCorpus"]


def _short_form(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


def _choice(kind: Kind[Any]) -> Any:
    """The type of a field whose ``type:`` key selects a class registered in `kind`."""
    registered = reduce(or_, kind.choices.values())
    return Annotated[registered, Field(discriminator="type"), BeforeValidator(_short_form)]


if TYPE_CHECKING:
    AnyCorpus = CorpusConfig
    AnyTokenizer = TokenizerConfig
else:
    AnyCorpus = _choice(CORPORA)
    AnyTokenizer = _choice(TOKENIZERS)


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
