"""Texts with labels, in files: what a classifier is trained on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from zoo.config.registry import DATASETS
from zoo.data.classification.class_names import in_order, write_labels
from zoo.data.classification.files import Columns, Example, divided, read_examples
from zoo.data.classification.layout import Laid, Layout
from zoo.data.dataset import Batch, DataConfig, Measure, Reader
from zoo.data.files import sha256, sha256_file
from zoo.data.listed import Listed
from zoo.data.tokenizers import AnyTokenizer, ByteConfig
from zoo.data.tokenizers.base import check_vocabulary
from zoo.utils.errors import DataError, did_you_mean

log = logging.getLogger("zoo")


class TextClassifier(Reader, Protocol):
    """What labelled texts have to know of the model that is trained on them."""

    classes: int
    vocab_size: int
    n_segments: int


@DATASETS.register
class ClassificationData(DataConfig):
    """Texts, or pairs of texts, with labels: .tsv with a header, or .jsonl."""

    unit: ClassVar[str] = "texts"

    type: Literal["classification"] = "classification"
    train: str = Field(description="a .tsv file with a header, or a .jsonl file")
    validation: str | float | None = Field(
        None, description="another file, or the share of the texts of `train` to hold out; null: none"
    )
    text: str = Field("text", description="the column of the text")
    pair: str | None = Field(None, description="the column of the second text of pairs; null: no pairs")
    label: str = Field("label", description="the column of the label")
    labels: tuple[str, ...] | None = Field(
        None,
        description="the labels in the order of their numbers; null: those of `train`, in the order of "
        "numbers or of the alphabet",
    )
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    context: int = Field(
        128, gt=3, description="tokens of an example at most; longer texts are cut, and counted"
    )
    best: Measure | None = Field(
        None,
        description="measure on the validation texts by which the best checkpoint is kept; null: accuracy",
    )

    @model_validator(mode="after")
    def _settings_act(self) -> Self:
        if isinstance(self.validation, float) and not 0 < self.validation < 1:
            raise ValueError(
                f"validation is {self.validation:g}; expected a file, a share between 0 and 1, or null"
            )
        if self.validation is None and self.best is not None:
            raise ValueError("`best` has no effect without validation texts")
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels {list(self.labels)} are not all different")
        if len({self.text, self.pair, self.label}) < 3:
            raise ValueError("text, pair and label must be different columns")
        return self

    @property
    def objective_name(self) -> str:
        """Classification, of texts."""
        return "text-classification"

    @property
    def length(self) -> int:
        """Tokens of an example at most."""
        return self.context

    @property
    def columns(self) -> Columns:
        """What is read of a file to train on."""
        return Columns(self.text, self.pair, self.label)

    def prepare(self, model: Reader) -> LabelledTexts:
        """Read and tokenise the texts.

        Raises:
            DataError: files or sizes that cannot be used, or not by this model.
        """
        self.check_reader(model)
        reader = cast(TextClassifier, model)
        marks = Layout.marks(self.pair is not None)
        if self.context <= marks:
            raise DataError(
                f"data.context is {self.context}, but {marks} tokens mark where texts begin and end"
            )
        return LabelledTexts(self, reader)


class Labelled:
    """Tokenised examples with the numbers of their classes.

    Attributes:
        laid: their tokens.
        labels: (n,) int64.
        cut: how many were longer than the context.
    """

    def __init__(self, examples: Sequence[Example], names: Sequence[str], layout: Layout) -> None:
        """Tokenise.

        Args:
            examples: with labels.
            names: of the classes.
            layout: how the model reads them.

        Raises:
            DataError: a label that is no class, with its place.
        """
        numbers = {name: number for number, name in enumerate(names)}
        for example in examples:
            if example.label not in numbers:
                near = did_you_mean(str(example.label), names)
                raise DataError(f"{example.place}: label '{example.label}' is not one of the classes{near}")
        self.laid: list[Laid] = [layout.lay(example.text, example.pair) for example in examples]
        self.labels: NDArray[np.int64] = np.array([numbers[str(e.label)] for e in examples], dtype=np.int64)
        self.cut = sum(laid.cut for laid in self.laid)

    def __len__(self) -> int:
        return len(self.laid)


class LabelledTexts(Listed[Labelled]):
    """Labelled texts, shuffled in every epoch.

    Attributes:
        names: of the classes, in the order of their numbers.
    """

    what = "texts"
    unit = ClassificationData.unit

    def __init__(self, data: ClassificationData, model: TextClassifier) -> None:
        """Read and tokenise the files.

        Args:
            data: where they are.
            model: what reads them.

        Raises:
            DataError: a file, label or tokenizer that cannot be used, other classes than the model's.
        """
        train, held_out = _divided(data)
        self.tokenizer = data.tokenizer.build(lambda: _texts(train))
        check_vocabulary(self.tokenizer, model.vocab_size)
        self.names = data.labels or in_order(str(example.label) for example in train)
        if len(self.names) != model.classes:
            raise DataError(
                f"data: there are {len(self.names)} labels ({', '.join(self.names)}), but model.classes is "
                f"{model.classes}"
            )
        self.classes, self.best = len(self.names), data.best or "accuracy"
        self._layout = Layout(self.tokenizer, data.context, model.n_segments)
        self.train = Labelled(train, self.names, self._layout)
        self.held_out = Labelled(held_out, self.names, self._layout) if held_out else None
        self._report_cuts(data)
        self.fingerprint = _fingerprint(data, self.tokenizer.hash, self.names)

    def _report_cuts(self, data: ClassificationData) -> None:
        for part, what in ((self.train, "training"), (self.held_out, "validation")):
            if part is not None and part.cut:
                log.warning(
                    f"data: {part.cut:,} of {len(part):,} {what} texts are longer than data.context "
                    f"{data.context} and lose their ends"
                )

    def batch(self, part: Labelled, indices: NDArray[np.int64]) -> Batch:
        """Tokens, segments and mask as `Layout.batch` makes them, labels (n,) int64."""
        inputs = self._layout.batch([part.laid[i] for i in indices])
        return *inputs, torch.from_numpy(part.labels[indices])

    def save(self, run: Path) -> None:
        """The tokenizer, and the names of the classes in labels.json."""
        super().save(run)
        write_labels(run, self.names)


def _divided(data: ClassificationData) -> tuple[list[Example], list[Example]]:
    """The examples to train on, and those to evaluate on."""
    examples = read_examples(Path(data.train).expanduser(), data.columns)
    if data.validation is None:
        return examples, []
    if isinstance(data.validation, str):
        return examples, read_examples(Path(data.validation).expanduser(), data.columns)
    return divided(examples, data.validation)


def _texts(examples: Sequence[Example]) -> Iterator[str]:
    for example in examples:
        yield example.text
        if example.pair is not None:
            yield example.pair


def _fingerprint(data: ClassificationData, tokenizer: str, names: Sequence[str]) -> str:
    files = [data.train, *([data.validation] if isinstance(data.validation, str) else [])]
    settings = data.model_dump_json(exclude={"train", "validation", "tokenizer", "labels", "best"})
    parts = [*(sha256_file(Path(file).expanduser()) for file in files), settings, tokenizer, *names]
    share = data.validation if isinstance(data.validation, float) else ""
    return sha256("\n".join([*parts, str(share)]).encode())
