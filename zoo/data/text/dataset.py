"""The data set of text (a corpus, a tokenizer, an objective), and its configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator

from zoo.config.inputs import NOT_EMPTY
from zoo.config.registry import DATASETS, type_of
from zoo.data.corpora import AnyCorpus, PythonDocsCorpus
from zoo.data.dataset import TOKENS, Batch, BatchSpec, DataConfig, Dataset, ModelRequirements
from zoo.data.objectives import AnyObjective, Causal, Objective
from zoo.data.text.overlap import known_overlap, measure_overlap
from zoo.data.text.prepare import TokenizedCorpus, prepare
from zoo.data.tokenizers import AnyTokenizer, ByteConfig
from zoo.utils.errors import DataError
from zoo.utils.files import expand_home
from zoo.utils.measures import OF_TEXTS


@DATASETS.register
class TextData(DataConfig):
    """Text: its corpus, its tokenizer, and the training objective."""

    assumed: ClassVar[bool] = True
    unit: ClassVar[str] = TOKENS

    type: Literal["text"] = "text"
    corpus: AnyCorpus = Field(default=PythonDocsCorpus(), description="source of the text")
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    objective: AnyObjective = Field(
        default=Causal(), description="training objective: what the model predicts"
    )
    context: int = Field(default=256, gt=0, description="number of tokens that the model sees in a sequence")
    documents: Literal["joined", "masked"] = Field(
        default="joined",
        description="what a token sees of its sequence: all tokens before it, or (masked) those of its own "
        "document, with positions that begin anew; objective causal only",
    )
    validation: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share of the documents to hold out; null: 0.05, or 0 with a validation_corpus",
    )
    validation_corpus: AnyCorpus | None = Field(
        default=None, description="a separate corpus for validation, instead of a share of the corpus"
    )
    cache_dir: Annotated[Path | None, NOT_EMPTY] = Field(
        default=None,
        description="where prepared data is kept; a relative path starts at the working directory; null: "
        "$XDG_CACHE_HOME/zoo or ~/.cache/zoo",
    )

    @model_validator(mode="after")
    def _one_validation(self) -> Self:
        if self.validation_corpus is not None and self.validation:
            raise ValueError(
                "there is a validation_corpus, and validation holds documents out: leave one out"
            )
        return self

    @model_validator(mode="after")
    def _documents_are_told_apart_by_attention(self) -> Self:
        if self.documents == "masked" and not isinstance(self.objective, Causal):
            name = type_of(self.objective)
            raise ValueError(f"documents: masked is for the objective causal, and this one is {name}")
        return self

    @property
    def separates_documents(self) -> bool:
        """Whether tokens see only those of their own document."""
        return self.documents == "masked"

    @property
    def validation_share(self) -> float:
        """Share of the corpus' documents that is held out for validation."""
        if self.validation is not None:
            return self.validation
        return 0.05 if self.validation_corpus is None else 0.0

    @property
    def objective_name(self) -> str:
        """The objective that the model must support: the `type` of this one, or of the one it is like."""
        name = type_of(self.objective)
        return self.objective.trains_like or name

    @property
    def measures(self) -> frozenset[str]:
        """The loss, and bits per byte if the targets can be the whole text."""
        if not self.validation_share and self.validation_corpus is None:
            return frozenset()
        whole = self.objective.predicts_every_token and self.tokenizer.may_keep_text
        return OF_TEXTS if whole else OF_TEXTS - {"bits_per_byte"}

    @property
    def length(self) -> int:
        """Number of tokens of a sequence, in an encoder-decoder of a source."""
        return self.context

    def example(self) -> Batch:
        """An example that the objective makes from a window of one token's repetitions."""
        window = torch.zeros(1, self.objective.tokens_per_example(self.context), dtype=torch.int64)
        return self.objective.checked_examples(window, 0, 0, 1)

    @property
    def prompting(self) -> Objective:
        """The objective, which also defines the prompting of the model."""
        return self.objective

    def prepare(self, model: ModelRequirements) -> TextDataset:
        """Tokenise the text, or reuse the cached tokens.

        Raises:
            DataError: The text, tokenizer or sizes cannot be used, or the model does not have the objective.
        """
        self.check_model(model)
        return TextDataset(self, getattr(model, "vocab_size", None))

    def cache_folder(self) -> Path:
        """The folder of the prepared data.

        Raises:
            DataError: No folder is given, and the user has no home folder.
        """
        if self.cache_dir is not None:
            return expand_home(self.cache_dir)
        if home := os.environ.get("XDG_CACHE_HOME"):
            return Path(home) / "zoo"
        try:
            return Path.home() / ".cache" / "zoo"
        except RuntimeError as error:
            raise DataError(
                "data: this user has no home folder for prepared data; expected data.cache_dir, or the "
                "variable HOME or XDG_CACHE_HOME"
            ) from error


class TextDataset(Dataset):
    """Examples of an objective from a corpus.

    Attributes:
        corpus: the token files and the tokenizer.
    """

    unit = TextData.unit

    def __init__(self, data: TextData, vocab_size: int | None) -> None:
        """Prepare the corpus.

        Args:
            data: the configuration.
            vocab_size: vocabulary of the model that will be trained; None: it is not checked.

        Raises:
            DataError: The text, the tokenizer or the sizes cannot be used.
        """
        self.data = data
        self.corpus: TokenizedCorpus = prepare(data, vocab_size)
        self.tokenizer = self.corpus.tokenizer
        self.fingerprint = self.corpus.fingerprint
        self.former_fingerprints = self.corpus.former_fingerprints
        self.units_per_example = data.units.number
        self.train_units = len(self.corpus.train)
        self.bytes_per_target = self._bytes_per_target()

    def _bytes_per_target(self) -> float | None:
        """Bytes per token of the whole validation text; ends of documents are targets without bytes."""
        held_out = self.corpus.manifest.validation
        predicted = self.data.objective.predicts_every_token and self.corpus.tokenizer.keeps_text
        if held_out is None or not predicted:
            return None
        return held_out.utf8_bytes / held_out.tokens

    @property
    def overlap(self) -> float | None:
        """See `zoo.data.text.overlap.overlap`; None: it was not measured, or nothing is held out."""
        return known_overlap(self._overlap_folder)

    def measure_overlap(self) -> float | None:
        """`overlap`, measured once for the prepared corpus."""
        held_out, tokens = self.corpus.manifest.validation, self.corpus.validation
        if held_out is None or tokens is None:
            return None
        eos_id = self.corpus.tokenizer.eos_id
        return measure_overlap(self._overlap_folder, self.corpus.train, tokens, eos_id, held_out.utf8_bytes)

    @property
    def _overlap_folder(self) -> Path:
        return self.data.cache_folder() / "overlap" / self.corpus.folder.name

    def train_batch(self, spec: BatchSpec) -> Batch:
        """This rank's part of a training batch, on the CPU."""
        data, corpus = self.data, self.corpus
        batch = corpus.objective.train_batch(corpus.train, spec, data.context, corpus.tokenizer.vocab_size)
        return self._with_documents(batch)

    def validation_batches(self, spec: BatchSpec, max_batches: int | None) -> Iterator[Batch] | None:
        """The objective's validation batches; None if no document is held out."""
        data, corpus = self.data, self.corpus
        if corpus.validation is None:
            return None
        vocab_size = corpus.tokenizer.vocab_size
        batches = corpus.objective.validation_batches(
            corpus.validation, spec, data.context, vocab_size, max_batches
        )
        return map(self._with_documents, batches)

    def _with_documents(self, batch: Batch) -> Batch:
        """The batch; numbers of documents stand between tokens and targets where attention needs them.

        Our choice: the token that ends a document counts as the first one of the next, because it is also the
        first token of a generated text. Therefore every token has a target, including the first one of a
        document.
        """
        if not self.data.separates_documents:
            return batch
        tokens, targets = batch
        return tokens, (tokens == self.corpus.tokenizer.eos_id).cumsum(1), targets
