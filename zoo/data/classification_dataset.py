"""Labelled texts as a data set."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.class_names import in_order, write_labels
from zoo.data.classification import ClassificationData, TextClassifier
from zoo.data.dataset import Batch
from zoo.data.files import sha256, sha256_file
from zoo.data.labelled_text import Example, divided, read_examples
from zoo.data.layout import Laid, Layout
from zoo.data.listed import Listed
from zoo.data.tokenizer import check_vocabulary
from zoo.errors import DataError, did_you_mean

log = logging.getLogger("zoo")


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
