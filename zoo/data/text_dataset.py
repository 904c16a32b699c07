"""Prepared text, seen through an objective."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.data.config import TextData
from zoo.data.dataset import Batch, Dataset, Order
from zoo.data.prepare import Corpus, prepare


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
