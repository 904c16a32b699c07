"""Texts with labels, in files: what a classifier is trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, cast

from pydantic import Field, model_validator

from zoo.data.byte import ByteConfig
from zoo.data.config import AnyTokenizer
from zoo.data.dataset import DataConfig, Measure, Reader
from zoo.data.labelled_text import Columns
from zoo.data.layout import Layout
from zoo.errors import DataError
from zoo.schema import DATASETS

if TYPE_CHECKING:
    from zoo.data.classification_dataset import LabelledTexts


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
        from zoo.data.classification_dataset import LabelledTexts

        self.check_reader(model)
        reader = cast(TextClassifier, model)
        marks = Layout.marks(self.pair is not None)
        if self.context <= marks:
            raise DataError(
                f"data.context is {self.context}, but {marks} tokens mark where texts begin and end"
            )
        return LabelledTexts(self, reader)
