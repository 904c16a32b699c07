"""Tokenizers: text to token ids and back."""

from __future__ import annotations

from typing import Annotated

from zoo.config.registry import TOKENIZERS
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokenizers.byte import ByteConfig
from zoo.data.tokenizers.huggingface import HuggingFaceConfig
from zoo.data.tokenizers.saved import SavedConfig, find_tokenizer
from zoo.data.tokenizers.sentencepiece import SentencePieceConfig
from zoo.data.tokenizers.word import WordConfig

__all__ = [
    "AnyTokenizer",
    "ByteConfig",
    "HuggingFaceConfig",
    "SavedConfig",
    "SentencePieceConfig",
    "Tokenizer",
    "TokenizerConfig",
    "WordConfig",
    "find_tokenizer",
    "load_tokenizer",
]

AnyTokenizer = Annotated[TokenizerConfig, TOKENIZERS]
