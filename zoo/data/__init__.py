"""Data sets: corpora, tokenizers, token files, and batches that are pure functions of (seed, step, rank).

Names are imported when they are first used, so that a process that only encodes texts starts without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.utils.lazy import lazy_names

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

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "zoo.data.corpora.base": "CorpusConfig Document SourceFile",
        "zoo.data.dataset": "Batch BatchSpec DataConfig Dataset",
        "zoo.data.text.dataset": "TextData",
        "zoo.data.text.manifest": "TokenManifest",
        "zoo.data.text.prepare": "TokenizedCorpus prepare",
        "zoo.data.tokenizers.base": "Tokenizer TokenizerConfig load_tokenizer",
        "zoo.data.tokenizers.saved": "find_tokenizer",
        "zoo.data.tokens": "TokenFile",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
