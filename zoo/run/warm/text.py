"""The text of a warm start: one part for measurements, and another one for comparing losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zoo.data.dataset import Batch, BatchSpec, DataConfig
from zoo.data.files import read_text
from zoo.data.objectives.batches import inputs_and_targets
from zoo.data.text.dataset import TextData
from zoo.models import Model
from zoo.run.trained import data_of, tokenizer_of
from zoo.utils.errors import DataError, ZooError
from zoo.utils.progress import progress

BATCH = 8
"""Number of examples in a batch."""
MEASURED, COMPARED = 4, 16
"""Largest numbers of batches for measurements and for comparing losses."""
CONTEXT = 256
"""Number of tokens in an example if the context of the training is unknown."""


@dataclass(frozen=True)
class Text:
    """Batches of a text, by which a conversion is measured.

    Attributes:
        measured: token batches, (batch, time) int64 each.
        compared: batches of inputs and targets, from another part of the text.
    """

    measured: Sequence[Tensor]
    compared: Sequence[Batch]

    @torch.no_grad()
    def loss(self, model: Model) -> float:
        """Mean cross entropy of `compared`, in nats per token."""
        training = model.training
        model.eval()
        weights = [batch[-1].numel() for batch in self.compared]
        losses = []
        with progress("measuring the loss", len(self.compared)) as advance:
            for batch in self.compared:
                losses.append(model.loss(*batch).cross_entropy.item())
                advance(1)
        model.train(training)
        return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)


def text_of(path: Path, model: Model, file: Path | None) -> Text:
    """Prepare the text for a model.

    Args:
        path: the path of the model.
        model: the model.
        file: UTF-8 text, whose first half is for measurements and whose second half is for comparing losses;
            None: the training and the validation text of the model.

    Raises:
        DataError: The file is too short, or the model comes without a tokenizer.
        ZooError: No file is given, and the model was not trained on text.
    """
    data = data_of(path)
    if file is not None:
        return _of_file(path, file, _context(data))
    if not isinstance(data, TextData) or data.objective_name != "causal":
        raise ZooError(f"convert: nothing tells what text {path} was trained on; give some, with --text FILE")
    examples = data.prepare(model.recipe.model)
    held_out = examples.validation_batches(BatchSpec(seed=0, step=0, batch_size=BATCH), COMPARED)
    if held_out is None:
        raise ZooError(
            f"convert: no text was held out of the training of {path}; give some, with --text FILE"
        )
    orders = [BatchSpec(seed=0, step=step, batch_size=BATCH) for step in range(MEASURED)]
    return Text([examples.train_batch(order)[0] for order in orders], list(held_out))


def _context(data: DataConfig | None) -> int:
    return data.length if isinstance(data, TextData) else CONTEXT


def _of_file(path: Path, file: Path, context: int) -> Text:
    tokens = torch.tensor(tokenizer_of(path).encode(read_text(file)))
    halves = [half.unfold(0, context + 1, context) for half in tokens.chunk(2) if len(half) > context]
    if len(halves) < 2:
        raise DataError(f"{file}: {len(tokens)} tokens; expected at least {2 * (context + 1)}, two examples")
    measured, compared = (torch.split(half, BATCH) for half in halves)
    return Text(
        [inputs_and_targets(rows)[0] for rows in measured[:MEASURED]],
        [inputs_and_targets(rows) for rows in compared[:COMPARED]],
    )
