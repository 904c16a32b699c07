"""`zoo classify`: predictions of a trained text classifier, and its metrics on labelled texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from zoo.checkpoint.model import load_model
from zoo.data.classification.class_names import read_labels
from zoo.data.classification.dataset import ClassificationData, EncodedTexts
from zoo.data.classification.encoding import (
    EncodedText,
    FramedTextEncoder,
    TextEncoder,
    TextPairEncoder,
)
from zoo.data.classification.files import Columns, Example, read_examples
from zoo.data.tokenizers.huggingface import HuggingFaceTokenizer
from zoo.hub.classifier import label_names
from zoo.models import Model
from zoo.run.trained import check_together, data_of, tokenizer_of
from zoo.train.confusion import confusions
from zoo.train.evaluate import Evaluation, classification_metrics
from zoo.utils.device import find_device
from zoo.utils.errors import DataError, ZooError, did_you_mean
from zoo.utils.files import check_text
from zoo.utils.progress import progress
from zoo.utils.run_folder import RunFolder, Which, model_folder
from zoo.utils.untyped import JsonObject

log = logging.getLogger("zoo")

BATCH = 64
"""Number of texts that are classified at a time."""
UNLIMITED = 2**20
"""Largest number of tokens of a text if neither the model nor its tokenizer has a limit."""
COLUMNS = ("text", "pair", "label")
MULTI_LABEL = "multi_label_classification"


@dataclass(frozen=True)
class ClassPrediction:
    """The prediction for one text.

    Attributes:
        label: name of the most probable class.
        probabilities: probability of every class, by its name.
    """

    label: str
    probabilities: dict[str, float]

    def line(self) -> str:
        """The label and the probabilities, separated by tabs."""
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
        plain: JsonObject = asdict(self) | {"evaluation": self.evaluation._asdict()}
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
        model: the model, in evaluation mode.
        columns: the columns of the files to read.
        labels: names of the classes.
        encoder: the encoder of texts to inputs of the model.
        pairs: whether the model was trained on pairs of texts; None: it is not known.
    """

    model: Model
    columns: Columns
    labels: Sequence[str]
    encoder: TextEncoder
    pairs: bool | None

    @classmethod
    def load(cls, path: Path, which: Which | None = None, device: str = "auto") -> TextClassifier:
        """Open a run or any other model.

        Args:
            path: a run of data `classification`, one of its checkpoints, or a classifier as on the Hugging
                Face hub, imported or not.
            which: the checkpoint of a run; None: the best one, or the last one if there is no best.
            device: name of the device, see `find_device`.

        Raises:
            ZooError: The run or checkpoint does not exist, or its model does not classify texts.
        """
        run = RunFolder(path)
        if which is not None and not run.exists:
            raise ZooError(f"classify: --which has no effect: {path} is no run")
        if which is None:
            which = "best" if run.checkpoint("best") else "last"
        data = data_of(path) if path.exists() else None
        model = load_model(path, which=which, device=find_device(device)).eval()
        reader = model.recipe.model
        known = data is None or isinstance(data, ClassificationData)
        if not known or "text-classification" not in reader.objectives:
            raise DataError(f"{path}: was not trained to classify texts (data of type 'classification')")
        tokenizer = tokenizer_of(path)
        check_together(path, tokenizer, reader.vocab_size)
        if isinstance(data, ClassificationData):
            encoder = data.encoder(reader, tokenizer)
            return cls(
                model, data.file_columns, read_labels(model_folder(path).path), encoder, data.pair is not None
            )
        columns, labels = Columns("text", None, "label"), _published_labels(path, model)
        max_length = reader.max_seq_len or UNLIMITED
        if not isinstance(tokenizer, HuggingFaceTokenizer):
            encoder = TextPairEncoder(tokenizer, max_length, reader.n_segments, reader.starts_texts)
            return cls(model, columns, labels, encoder, None)
        framed = min(max_length, tokenizer.max_length or UNLIMITED)
        return cls(model, columns, labels, FramedTextEncoder(tokenizer, framed, reader.n_segments), None)

    def with_columns(self, names: Mapping[str, str]) -> TextClassifier:
        """The same classifier for files with other columns, which must have a header.

        Args:
            names: names of columns by the keys in `COLUMNS`.

        Raises:
            ZooError: A key is unknown, or a pair is named for a model of single texts.
        """
        for key in names:
            if key not in COLUMNS:
                expected = f"expected {', '.join(COLUMNS)}"
                raise ZooError(f"classify: --columns {key}: {expected}{did_you_mean(key, COLUMNS)}")
        if "pair" in names and self.pairs is False:
            raise ZooError("classify: --columns pair: the model was trained on one text, no pair")
        return replace(self, columns=replace(self.columns, header=None, **names))

    def predict(self, examples: Sequence[Example]) -> list[ClassPrediction]:
        """The predictions for texts, in their order; a warning says how many had to be truncated.

        Raises:
            DataError: A text is empty or no UTF-8, or is one of a pair although the model was trained on
                single texts, or the other way round.
        """
        for example in examples:
            self._check(example)
        encoded = [self.encoder.encode(example.text, example.pair) for example in examples]
        if cut := sum(text.truncated for text in encoded):
            log.warning(
                f"classify: {cut:,} of {len(encoded):,} texts are longer than the {self.encoder.context} "
                "tokens that the model reads, and lose their ends"
            )
        rows = self._logits(encoded).softmax(-1).tolist()
        by_label = [dict(zip(self.labels, row, strict=True)) for row in rows]
        return [ClassPrediction(max(p, key=lambda label: p[label]), p) for p in by_label]

    def read(self, file: Path) -> list[Example]:
        """Read the texts of a file without labels, with the columns of the training files."""
        return read_examples(file, replace(self.columns, label=None))

    def score(self, file: Path) -> Scores:
        """Evaluate the predictions for a labelled file with the columns of the training files.

        Raises:
            DataError: The file cannot be read, or a label is not a class of the model.
        """
        part = EncodedTexts(read_examples(file, self.columns), self.labels, self.encoder)
        logits, labels = self._logits(part.encoded), torch.from_numpy(part.labels)
        matrix = confusions(labels, logits.argmax(-1), len(self.labels)).double()
        evaluation = classification_metrics(F.cross_entropy(logits, labels).item(), matrix)
        return Scores(str(file), len(part), part.n_truncated, evaluation)

    def _check(self, example: Example) -> None:
        for text in (example.text, example.pair or ""):
            check_text(text, example.place, DataError)
        if not example.text.strip() or (example.pair is not None and not example.pair.strip()):
            raise DataError(f"{example.place}: empty; expected a text")
        if self.pairs is not None and (example.pair is not None) != self.pairs:
            expected = "a pair of texts" if self.pairs else "one text, no pair"
            raise DataError(f"{example.place}: the model was trained on {expected}")

    @torch.no_grad()
    def _logits(self, encoded: Sequence[EncodedText]) -> Tensor:
        """The logits, (n, classes) float64, on the CPU."""
        device = next(self.model.parameters()).device
        parts = []
        with progress("classifying", len(encoded)) as advance:
            for first in range(0, len(encoded), BATCH):
                batch = encoded[first : first + BATCH]
                inputs = self.encoder.collate(batch)
                parts.append(self.model(*(t.to(device) for t in inputs)).cpu().double())
                advance(len(batch))
        return torch.cat(parts)


def _published_labels(path: Path, model: Model) -> list[str]:
    """The names of the classes of a model that is no run, from an import or from its config.json.

    Raises:
        DataError: There are no names, or the classes do not exclude each other.
    """
    config: JsonObject = model.published.get("config", {})
    if config.get("problem_type") == MULTI_LABEL:
        raise DataError(
            f"{path}: problem_type: '{MULTI_LABEL}': a text may have several of the labels; expected a "
            "model of classes that exclude each other"
        )
    folder = model_folder(path)
    return read_labels(folder.path) if folder.labels.is_file() or not config else label_names(config)
