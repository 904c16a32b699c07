"""Text to batches: corpora, tokenizers, token files, and batches without state."""

from zoo.data.corpora.base import CorpusConfig, Document, Source
from zoo.data.dataset import Batch, DataConfig, Dataset, Order
from zoo.data.text.dataset import TextData
from zoo.data.text.manifest import Manifest
from zoo.data.text.prepare import Corpus, prepare
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokenizers.saved import find_tokenizer
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
