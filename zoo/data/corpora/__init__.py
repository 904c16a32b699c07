"""Corpora: sources of text."""

from __future__ import annotations

from typing import Annotated

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import CorpusConfig, Document, SourceFile
from zoo.data.corpora.jsonl import JsonlCorpus
from zoo.data.corpora.mixture import MixtureCorpus
from zoo.data.corpora.parquet import ParquetCorpus
from zoo.data.corpora.python_docs import PythonDocsCorpus
from zoo.data.corpora.text import TextCorpus

__all__ = [
    "AnyCorpus",
    "CorpusConfig",
    "Document",
    "JsonlCorpus",
    "MixtureCorpus",
    "ParquetCorpus",
    "PythonDocsCorpus",
    "SourceFile",
    "TextCorpus",
]

AnyCorpus = Annotated[CorpusConfig, CORPORA]
