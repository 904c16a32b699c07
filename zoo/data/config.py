"""Text as a data set: a corpus, a tokenizer, an objective."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.data.byte import ByteConfig
from zoo.data.corpus import CorpusConfig
from zoo.data.dataset import DataConfig, Reader
from zoo.data.hf_tokenizer import HuggingFaceConfig
from zoo.data.jsonl import JsonlCorpus
from zoo.data.mlm import MaskedLM
from zoo.data.objective import Causal, Objective
from zoo.data.python_docs import PythonDocsCorpus
from zoo.data.saved import SavedConfig
from zoo.data.sentencepiece import SentencePieceConfig
from zoo.data.span_corruption import SpanCorruption
from zoo.data.stream import Stream
from zoo.data.text import TextCorpus
from zoo.data.tokenizer import TokenizerConfig
from zoo.data.word import WordConfig
from zoo.schema import CORPORA, DATASETS, OBJECTIVES, TOKENIZERS, choice

__all__ = [
    "ByteConfig",
    "Causal",
    "HuggingFaceConfig",
    "JsonlCorpus",
    "MaskedLM",
    "PythonDocsCorpus",
    "SavedConfig",
    "SentencePieceConfig",
    "SpanCorruption",
    "Stream",
    "TextCorpus",
    "TextData",
    "WordConfig",
]


if TYPE_CHECKING:
    from zoo.data.text_dataset import TextDataset

    AnyCorpus = CorpusConfig
    AnyTokenizer = TokenizerConfig
    AnyObjective = Objective
else:
    AnyCorpus = choice(CORPORA)
    AnyTokenizer = choice(TOKENIZERS)
    AnyObjective = choice(OBJECTIVES)


@DATASETS.register
class TextData(DataConfig):
    """Text: where it comes from, how it becomes sequences of tokens, and what is asked of them."""

    assumed: ClassVar[bool] = True
    unit: ClassVar[str] = "tokens"

    type: Literal["text"] = "text"
    corpus: AnyCorpus = Field(default=PythonDocsCorpus(), description="where the text comes from")
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    objective: AnyObjective = Field(default=Causal(), description="what is to be predicted")
    context: int = Field(default=256, gt=0, description="tokens the model sees in a sequence")
    validation: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share of the documents held out for validation; null: 0.05, or none beside a corpus",
    )
    validation_corpus: AnyCorpus | None = Field(
        default=None, description="text of its own to validate on, instead of a share of the corpus"
    )
    cache_dir: Path | None = Field(
        default=None, description="where prepared data is kept; null: $XDG_CACHE_HOME/zoo or ~/.cache/zoo"
    )

    @model_validator(mode="after")
    def _one_validation(self) -> Self:
        if self.validation_corpus is not None and self.validation:
            raise ValueError(
                "there is a validation_corpus, and validation holds documents out: leave one out"
            )
        return self

    @property
    def held_out(self) -> float:
        """Share of the corpus' documents that is not trained on."""
        if self.validation is not None:
            return self.validation
        return 0.05 if self.validation_corpus is None else 0.0

    @property
    def objective_name(self) -> str:
        """The type of the objective."""
        name: str = type(self.objective).model_fields["type"].default
        return name

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.context

    @property
    def prompting(self) -> Objective:
        """The objective's."""
        return self.objective

    def prepare(self, model: Reader) -> TextDataset:
        """Tokenise the text, or find it tokenised.

        Raises:
            DataError: text, tokenizer or sizes that cannot be used, or another objective than the
                model's.
        """
        from zoo.data.text_dataset import TextDataset

        self.check_reader(model)
        return TextDataset(self, getattr(model, "vocab_size", None))

    def cache_folder(self) -> Path:
        """The folder in which prepared data is kept."""
        if self.cache_dir is not None:
            return self.cache_dir.expanduser()
        home = os.environ.get("XDG_CACHE_HOME")
        return (Path(home) if home else Path.home() / ".cache") / "zoo"
