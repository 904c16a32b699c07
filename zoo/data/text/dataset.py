"""Text as a data set: a corpus, a tokenizer, an objective."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.config.registry import DATASETS
from zoo.data.corpora import AnyCorpus, PythonDocsCorpus
from zoo.data.dataset import Batch, DataConfig, Dataset, Order, Reader
from zoo.data.objectives import AnyObjective, Causal, Objective
from zoo.data.text.prepare import Corpus, prepare
from zoo.data.tokenizers import AnyTokenizer, ByteConfig


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
        self.check_reader(model)
        return TextDataset(self, getattr(model, "vocab_size", None))

    def cache_folder(self) -> Path:
        """The folder in which prepared data is kept."""
        if self.cache_dir is not None:
            return self.cache_dir.expanduser()
        home = os.environ.get("XDG_CACHE_HOME")
        return (Path(home) if home else Path.home() / ".cache") / "zoo"


class TextDataset(Dataset):
    """Examples of an objective from a corpus.

    Attributes:
        corpus: the tokens and the tokenizer.
    """

    unit = TextData.unit

    def __init__(self, data: TextData, vocab_size: int | None) -> None:
        """Prepare the corpus.

        Args:
            data: what to prepare.
            vocab_size: of the model that will read it; None: do not compare.

        Raises:
            DataError: see `prepare`.
        """
        self.data = data
        self.corpus: Corpus = prepare(data, vocab_size)
        self.tokenizer = self.corpus.tokenizer
        self.fingerprint = self.corpus.folder.name
        self.units = data.context
        self._vocabulary = self.tokenizer.vocab_size

    def training(self, order: Order) -> Batch:
        """This rank's part of a training batch, on the CPU."""
        return self.data.objective.training(self.corpus.train, order, self.data.context, self._vocabulary)

    def validation(self, order: Order, batches: int | None) -> Iterator[Batch] | None:
        """The objective's validation batches; None if no document is held out."""
        if self.corpus.validation is None:
            return None
        return self.data.objective.validation(
            self.corpus.validation, order, self.data.context, self._vocabulary, batches
        )
