"""The data set of labelled texts for training a classifier, and its configuration."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from zoo.config.inputs import READS_FILES
from zoo.config.registry import DATASETS
from zoo.data.classification.class_names import sorted_labels, write_labels
from zoo.data.classification.encoding import EncodedText, TextEncoder, TextPairEncoder
from zoo.data.classification.files import TSV, Columns, Example, read_examples
from zoo.data.compression import content_suffix
from zoo.data.dataset import Batch, BatchSpec, DataConfig, ModelRequirements
from zoo.data.files import sha256
from zoo.data.map_dataset import MapDataset
from zoo.data.split import check_validation, file_digests, read_split
from zoo.data.tokenizers import AnyTokenizer, ByteConfig
from zoo.data.tokenizers.base import Tokenizer, built_tokenizer, check_vocabulary
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.files import expand_home
from zoo.utils.measures import OF_CLASSIFIERS

log = logging.getLogger("zoo")


class TextModelRequirements(ModelRequirements, Protocol):
    """The fields of a text classifier's configuration with which the data set must agree."""

    classes: int
    vocab_size: int
    n_segments: int
    starts_texts: bool


@DATASETS.register
class ClassificationData(DataConfig):
    """Texts, or pairs of texts, with labels: .tsv, .jsonl or .parquet."""

    unit: ClassVar[str] = "texts"

    type: Literal["classification"] = "classification"
    train: Annotated[str, READS_FILES] = Field(
        description="a .tsv file, whose first line names its columns, or a .jsonl or .parquet file, "
        "or a folder that datasets has saved"
    )
    validation: Annotated[str | float | dict[str, str] | None, READS_FILES] = Field(
        None,
        description="another file, the share of the texts of `train` to hold out, or several files, name: "
        "file; null: none",
    )
    text: str = Field("text", description="the column of the text")
    pair: str | None = Field(None, description="the column of the second text of pairs; null: no pairs")
    label: str = Field("label", description="the column of the label")
    columns: tuple[str, ...] | None = Field(
        None, description="the names of the columns of .tsv files without a header; null: there is a header"
    )
    labels: tuple[str, ...] | None = Field(
        None,
        description="the labels in the order of their class indices; null: those of `train`, sorted as "
        "numbers or alphabetically",
    )
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    context: int = Field(
        128,
        gt=3,
        description="maximal number of tokens of an example; longer texts are truncated",
    )
    best: Literal["cross_entropy", "accuracy", "f1", "matthews"] | None = Field(
        None,
        description="the same as the run's `metric`, under the name it had at first; null: accuracy",
    )

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if isinstance(self.validation, dict):
            _check_files(self.validation)
        else:
            check_validation(self.validation)
        if self.validation is None and self.best is not None:
            raise ValueError("`best` has no effect without validation texts")
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels {list(self.labels)} are not all different")
        if len({self.text, self.pair, self.label}) < 3:
            raise ValueError("text, pair and label must be different columns")
        if self.columns is not None:
            self._check_columns(self.columns)
        return self

    def _check_columns(self, columns: tuple[str, ...]) -> None:
        """Check the names of the columns of files without a header.

        Raises:
            ValueError: Two names are the same, a column that is read is missing, or no file is a .tsv.
        """
        if len(set(columns)) != len(columns):
            raise ValueError(f"columns {list(columns)} are not all different")
        for column in self.file_columns.read:
            if column not in columns:
                raise ValueError(f"columns has no '{column}'{did_you_mean(column, columns)}")
        others = self.validation.values() if isinstance(self.validation, dict) else [self.validation]
        if not any(isinstance(f, str) and content_suffix(Path(f)) == TSV for f in (self.train, *others)):
            raise ValueError(f"columns has no effect, as no file is a {TSV}")

    @property
    def measures(self) -> frozenset[str]:
        """The measures of classifiers; several validation files have theirs under ``FILE/`` as well."""
        if self.validation is None:
            return frozenset()
        files = self.validation if isinstance(self.validation, dict) and len(self.validation) > 1 else ()
        return OF_CLASSIFIERS | {f"{file}/{name}" for file in files for name in OF_CLASSIFIERS}

    @property
    def objective_name(self) -> str:
        """The name of the objective: classification of texts."""
        return "text-classification"

    @property
    def length(self) -> int:
        """Maximal number of tokens of an example."""
        return self.context

    @property
    def file_columns(self) -> Columns:
        """The columns of a training file."""
        return Columns(self.text, self.pair, self.label, self.columns)

    def encoder(self, model: TextModelRequirements, tokenizer: Tokenizer) -> TextPairEncoder:
        """The encoder that turns these texts into inputs of a model."""
        return TextPairEncoder(tokenizer, self.context, model.n_segments, model.starts_texts)

    def prepare(self, model: ModelRequirements) -> ClassificationDataset:
        """Read and tokenise the texts.

        Raises:
            DataError: The files cannot be used, the context leaves no room for text, or the model cannot be
                trained on such examples.
        """
        self.check_model(model)
        reader = cast(TextModelRequirements, model)
        special = TextPairEncoder.n_special_tokens(self.pair is not None, reader.starts_texts)
        if self.context <= special:
            raise DataError(
                f"data.context is {self.context}, but {special} tokens mark where texts begin and end"
            )
        return ClassificationDataset(self, reader)


class EncodedTexts:
    """Tokenised texts with the indices of their classes.

    Attributes:
        encoded: the tokens of the texts.
        labels: (n,) int64, class indices.
        n_truncated: number of texts that were longer than the context.
    """

    def __init__(self, examples: Sequence[Example], names: Sequence[str], encoder: TextEncoder) -> None:
        """Tokenise the texts.

        Args:
            examples: texts with labels.
            names: names of the classes in the order of their indices.
            encoder: input format of the model.

        Raises:
            DataError: A label is not the name of a class.
        """
        indices = {name: index for index, name in enumerate(names)}
        for example in examples:
            if example.label not in indices:
                near = did_you_mean(str(example.label), names)
                raise DataError(f"{example.place}: label '{example.label}' is not one of the classes{near}")
        self.encoded: list[EncodedText] = [encoder.encode(e.text, e.pair) for e in examples]
        self.labels: NDArray[np.int64] = np.array([indices[str(e.label)] for e in examples], dtype=np.int64)
        self.n_truncated = sum(encoded.truncated for encoded in self.encoded)

    def __len__(self) -> int:
        return len(self.encoded)


class ClassificationDataset(MapDataset[EncodedTexts]):
    """Labelled texts, reshuffled in every epoch.

    Attributes:
        class_names: names of the classes in the order of their indices.
    """

    unit = ClassificationData.unit

    def __init__(self, data: ClassificationData, model: TextModelRequirements) -> None:
        """Read and tokenise the files.

        Args:
            data: files, columns and tokenizer.
            model: the configuration of the model that will be trained on the texts.

        Raises:
            DataError: A file, label or tokenizer cannot be used, or the labels are not the model's classes.
        """
        read = partial(read_examples, columns=data.file_columns)
        if isinstance(data.validation, dict):
            train, _ = read_split(data.train, None, read, _split_key)
            labelled = train
            held_out = {name: read(expand_home(file)) for name, file in data.validation.items()}
        else:
            train, rest = read_split(data.train, data.validation, read, _split_key)
            held_out = {"": rest} if rest else {}
            # Of a share, `rest` is of the training file, and may have all the texts of a rare class.
            labelled = [*train, *rest] if isinstance(data.validation, float) else train
        self.tokenizer = built_tokenizer(data.tokenizer, lambda: _texts(train))
        check_vocabulary(self.tokenizer, model.vocab_size)
        self.class_names = data.labels or sorted_labels(str(example.label) for example in labelled)
        if len(self.class_names) != model.classes:
            raise DataError(
                f"data: there are {len(self.class_names)} labels ({', '.join(self.class_names)}), but "
                f"model.classes is {model.classes}"
            )
        self.classes, self.best_metric = len(self.class_names), data.best or "accuracy"
        self._encoder = data.encoder(model, self.tokenizer)
        self.train_examples = self._encode(train, "training")
        self._validation = {name: self._encode(texts, "validation") for name, texts in held_out.items()}
        self.validation_examples = next(iter(self._validation.values()), None)
        self.fingerprint = _fingerprint(data, self.tokenizer.hash, self.class_names)

    def _encode(self, examples: Sequence[Example], side: str) -> EncodedTexts:
        """Tokenise the texts of one side, with a warning if some had to be truncated."""
        texts = EncodedTexts(examples, self.class_names, self._encoder)
        if texts.n_truncated:
            log.warning(
                f"data: {texts.n_truncated:,} of {len(texts):,} {side} texts are longer than data.context "
                f"{self._encoder.context} and lose their ends"
            )
        return texts

    def collate(self, examples: EncodedTexts, indices: NDArray[np.int64]) -> Batch:
        """Tokens, segments and mask as `TextPairEncoder.collate` returns them, labels (n,) int64."""
        inputs = self._encoder.collate([examples.encoded[i] for i in indices])
        return *inputs, torch.from_numpy(examples.labels[indices])

    def validation_sets(self, spec: BatchSpec, max_batches: int | None) -> dict[str, Iterator[Batch]]:
        """The validation batches by the name of their file."""
        return {
            name: self._validation_batches(texts, spec, max_batches)
            for name, texts in self._validation.items()
        }

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and the names of the classes in labels.json."""
        super().save(folder)
        write_labels(folder, self.class_names)


def _check_files(files: Mapping[str, str]) -> None:
    """Check the names of several validation files.

    Raises:
        ValueError: There is no file, a name cannot be part of a file's name, or a file has two names.
    """
    if not files:
        raise ValueError("validation: no file; expected name: file")
    for name in files:
        if not re.fullmatch(r"\w[\w-]*", name):
            raise ValueError(f"validation: '{name}': expected a name of letters, digits, - and _")
    for file in files.values():
        names = [name for name, other in files.items() if other == file]
        if len(names) > 1:
            raise ValueError(f"validation: {' and '.join(names)} are the same file, {file}")


def _split_key(example: Example) -> str:
    return f"{example.text}\t{example.pair or ''}"


def _texts(examples: Sequence[Example]) -> Iterator[str]:
    for example in examples:
        yield example.text
        if example.pair is not None:
            yield example.pair


def _fingerprint(data: ClassificationData, tokenizer: str, names: Sequence[str]) -> str:
    excluded = {"train", "validation", "tokenizer", "labels", "best"}
    if data.columns is None:  # as in the fingerprints of runs that were made before this field existed
        excluded.add("columns")
    settings = data.model_dump_json(exclude=excluded)
    share = data.validation if isinstance(data.validation, float) else ""
    if isinstance(data.validation, dict):
        digests = file_digests(data.train, *data.validation.values())
        share = ",".join(data.validation)
    else:
        digests = file_digests(data.train, data.validation)
    parts = [*digests, settings, tokenizer, *names, str(share)]
    return sha256("\n".join(parts).encode())
