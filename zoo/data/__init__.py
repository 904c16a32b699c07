"""Text to batches: corpora, tokenizers, token files, and batches without state."""

from zoo.data.config import TextData
from zoo.data.corpus import CorpusConfig, Document, Source
from zoo.data.dataset import Batch, DataConfig, Dataset, Order
from zoo.data.manifest import Manifest
from zoo.data.prepare import Corpus, prepare
from zoo.data.saved import find_tokenizer
from zoo.data.tokenizer import Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokens import TokenFile

__all__ = [
    "Batch",
    "Corpus",
    "CorpusConfig",
    "DataConfig",
    "Dataset",
    "Document",
    "Manifest",
    "Order",
    "Source",
    "TextData",
    "TokenFile",
    "Tokenizer",
    "TokenizerConfig",
    "find_tokenizer",
    "load_tokenizer",
    "prepare",
]
