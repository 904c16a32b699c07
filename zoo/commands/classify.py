"""`zoo classify`: predictions of a trained text classifier, and its metrics on labelled texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from zoo.checkpoint.model import load_model
from zoo.data.classification.class_names import read_labels
from zoo.data.classification.dataset import ClassificationData, EncodedTexts
from zoo.data.classification.encoding import EncodedText, TextPairEncoder
from zoo.data.classification.files import Example, read_examples
from zoo.models import Model
from zoo.run.trained import data_of, tokenizer_of
from zoo.train.confusion import confusions
from zoo.train.evaluate import Evaluation, classification_metrics
from zoo.utils.device import find_device
from zoo.utils.errors import DataError
from zoo.utils.run_folder import RunFolder, Which

BATCH = 64
"""Texts that are classified at a time."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text.

    Attributes:
        label: name of the most probable class.
        probabilities: probability of every class, by its name.
    """

    label: str
    probabilities: dict[str, float]

    def line(self) -> str:
        """Label and probabilities, separated by tabs."""
        return "\t".join([self.label, *(f"{p:.6f}" for p in self.probabilities.values())])


@dataclass(frozen=True)
class Scores:
    """The metrics of a classifier on a labelled file.

    Attributes:
        file: path of the file.
        texts: number of texts in the file.
        cut: number of texts that were truncated to the length that the model reads.
        evaluation: metrics over all texts.
    """

    file: str
    texts: int
    cut: int
    evaluation: Evaluation

    def to_json(self) -> str:
        """The metrics as a JSON object."""
        plain: dict[str, Any] = asdict(self) | {"evaluation": self.evaluation._asdict()}
        return json.dumps(plain | plain.pop("evaluation"), indent=2) + "\n"

    def table(self) -> Table:
        """The metrics as a table for the terminal."""
        table = Table(box=None, show_header=False)
        table.add_column(style="cyan")
        table.add_column(justify="right")
        table.add_row("file", self.file)
        table.add_row("texts", f"{self.texts:,}" + (f", {self.cut:,} cut" if self.cut else ""))
        for name, value in self.evaluation._asdict().items():
            table.add_row(name.replace("_", " "), f"{value:.4f}")
        return table


@dataclass(frozen=True)
class TextClassifier:
    """A trained classifier of texts, with its labels and the format of its inputs.

    Attributes:
        model: in evaluation mode.
        data: configuration of the data that the model was trained on.
        labels: names of the classes.
        encoder: turns texts into the inputs of the model.
    """

    model: Model
    data: ClassificationData
    labels: Sequence[str]
    encoder: TextPairEncoder

    @classmethod
    def load(cls, path: Path, which: Which | None = None, device: str = "auto") -> TextClassifier:
        """Open a run.

        Args:
            path: a run of data `classification`, or one of its checkpoints.
            which: the checkpoint of a run; None: the best one, or the last one if there is no best.
            device: name of the device, see `find_device`.

        Raises:
            ZooError: the run or checkpoint does not exist, or its model does not classify texts.
        """
        if which is None:
            which = "best" if RunFolder(path).checkpoint("best") else "last"
        data = data_of(path) if path.exists() else None
        model = load_model(path, which=which, device=find_device(device)).eval()
        reader: Any = model.recipe.model
        if data is None and "text-classification" in reader.objectives:
            raise DataError(
                f"{path}: a classifier without the configuration of a run, which says how texts become "
                f"tokens; expected a run, which `model: {{from: {path}}}` with data of type "
                "'classification' begins"
            )
        if not isinstance(data, ClassificationData):
            raise DataError(f"{path}: was not trained to classify texts (data of type 'classification')")
        encoder = TextPairEncoder(tokenizer_of(path), data.context, reader.n_segments, reader.starts_texts)
        return cls(model, data, read_labels(path), encoder)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """The predictions for texts, in their order.

        Raises:
            DataError: a text is empty, or has a pair although the model was trained without, or has none
                although it was trained with pairs.
        """
        for example in examples:
            self._check(example)
        encoded = [self.encoder.encode(example.text, example.pair) for example in examples]
        rows = self._logits(encoded).softmax(-1).tolist()
        by_label = [dict(zip(self.labels, row, strict=True)) for row in rows]
        return [Prediction(max(p, key=lambda label: p[label]), p) for p in by_label]

    def read(self, file: Path) -> list[Example]:
        """Read the texts of a file without labels, with the columns of the training files."""
        return read_examples(file, replace(self.data.file_columns, label=None))

    def score(self, file: Path) -> Scores:
        """Evaluate the predictions for a labelled file with the columns of the training files.

        Raises:
            DataError: the file cannot be read, or a label is not a class of the model.
        """
        part = EncodedTexts(read_examples(file, self.data.file_columns), self.labels, self.encoder)
        logits, labels = self._logits(part.encoded), torch.from_numpy(part.labels)
        matrix = confusions(labels, logits.argmax(-1), len(self.labels)).double()
        evaluation = classification_metrics(F.cross_entropy(logits, labels).item(), matrix)
        return Scores(str(file), len(part), part.n_truncated, evaluation)

    def _check(self, example: Example) -> None:
        if not example.text.strip() or (example.pair is not None and not example.pair.strip()):
            raise DataError(f"{example.place}: empty; expected a text")
        if (example.pair is None) != (self.data.pair is None):
            expected = "one text, no pair" if self.data.pair is None else "a pair of texts"
            raise DataError(f"{example.place}: the model was trained on {expected}")

    @torch.no_grad()
    def _logits(self, encoded: Sequence[EncodedText]) -> Tensor:
        """(n, classes) float64, on the CPU."""
        device = next(self.model.parameters()).device
        parts = []
        for first in range(0, len(encoded), BATCH):
            inputs = self.encoder.collate(encoded[first : first + BATCH])
            parts.append(self.model(*(t.to(device) for t in inputs)).cpu().double())
        return torch.cat(parts)
