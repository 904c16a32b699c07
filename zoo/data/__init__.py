"""Data sets: corpora, tokenizers, token files, and batches that are pure functions of (seed, step, rank)."""

from zoo.data.corpora.base import CorpusConfig, Document, SourceFile
from zoo.data.dataset import Batch, BatchSpec, DataConfig, Dataset
from zoo.data.text.dataset import TextData
from zoo.data.text.manifest import TokenManifest
from zoo.data.text.prepare import TokenizedCorpus, prepare
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.data.tokens import TokenFile

__all__ = [
    "Batch",
    "BatchSpec",
    "CorpusConfig",
    "DataConfig",
    "Dataset",
    "Document",
    "SourceFile",
    "TextData",
    "TokenFile",
    "TokenManifest",
    "TokenizedCorpus",
    "Tokenizer",
    "TokenizerConfig",
    "find_tokenizer",
    "load_tokenizer",
    "prepare",
]
