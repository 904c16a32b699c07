"""Text to batches: corpora, tokenizers, token files, and batches without state."""

from zoo.data.batches import batch, validation_batches, windows_per_epoch
from zoo.data.config import DataConfig
from zoo.data.corpus import CorpusConfig, Document, Source
from zoo.data.manifest import Manifest
from zoo.data.prepare import Corpus, prepare
from zoo.data.tokenizer import Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokens import TokenFile

__all__ = [
    "Corpus",
    "CorpusConfig",
    "DataConfig",
    "Document",
    "Manifest",
    "Source",
    "TokenFile",
    "Tokenizer",
    "TokenizerConfig",
    "batch",
    "load_tokenizer",
    "prepare",
    "validation_batches",
    "windows_per_epoch",
]
