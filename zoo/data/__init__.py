"""Data sets: corpora, tokenizers, token files, and batches that are pure functions of (seed, step, rank).

Names are loaded when they are first used, so that a process that only encodes texts starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.data.corpora.base import CorpusConfig as CorpusConfig
    from zoo.data.corpora.base import Document as Document
    from zoo.data.corpora.base import SourceFile as SourceFile
    from zoo.data.dataset import Batch as Batch
    from zoo.data.dataset import BatchSpec as BatchSpec
    from zoo.data.dataset import DataConfig as DataConfig
    from zoo.data.dataset import Dataset as Dataset
    from zoo.data.text.dataset import TextData as TextData
    from zoo.data.text.manifest import TokenManifest as TokenManifest
    from zoo.data.text.prepare import TokenizedCorpus as TokenizedCorpus
    from zoo.data.text.prepare import prepare as prepare
    from zoo.data.tokenizers.base import Tokenizer as Tokenizer
    from zoo.data.tokenizers.base import TokenizerConfig as TokenizerConfig
    from zoo.data.tokenizers.base import load_tokenizer as load_tokenizer
    from zoo.data.tokenizers.saved import find_tokenizer as find_tokenizer
    from zoo.data.tokens import TokenFile as TokenFile

_HOME = {
    name: f"{__name__}.{module}"
    for module, names in {
        "corpora.base": "CorpusConfig Document SourceFile",
        "dataset": "Batch BatchSpec DataConfig Dataset",
        "text.dataset": "TextData",
        "text.manifest": "TokenManifest",
        "text.prepare": "TokenizedCorpus prepare",
        "tokenizers.base": "Tokenizer TokenizerConfig load_tokenizer",
        "tokenizers.saved": "find_tokenizer",
        "tokens": "TokenFile",
    }.items()
    for name in names.split()
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
